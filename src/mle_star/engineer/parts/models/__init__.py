"""Model families, one a file: `FAMILY` tells all that the engineer knows about one."""
