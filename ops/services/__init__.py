"""vLLM services: start and stop them honestly, watch them warm up, say why they crashed, test their answers."""
