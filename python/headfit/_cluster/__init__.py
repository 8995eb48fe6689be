"""Work that is split by rows among the workers of a `dask.distributed.Client`."""
