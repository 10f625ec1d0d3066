"""What a real FlashInfer compiles when first needed."""

from . import cubin_loader as cubin_loader
