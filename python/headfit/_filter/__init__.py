"""Filters: heads whose logits depend on the offset between query and key alone."""
