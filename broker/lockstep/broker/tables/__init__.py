"""Pure tables: requests and times in, grants and changes out."""
