"""Other people's interfaces, one file each; a file imports its library when it is used."""
