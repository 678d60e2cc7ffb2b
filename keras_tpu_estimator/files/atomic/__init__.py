"""Files that appear whole or not at all, and checksums that show damage."""
