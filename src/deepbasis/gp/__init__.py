"""The method. Plain modules and free functions for one model and one batch `[b, d]`; nothing here knows of members."""
