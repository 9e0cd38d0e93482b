"""Between a directory and a store: upload, download, and the order by which a node fetches its code."""
