"""The practice box: eight simulated GPUs and a practice serving stack. Everything that it shows says PRACTICE."""
