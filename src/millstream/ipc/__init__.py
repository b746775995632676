"""How processes talk: typed msgpack over Unix sockets in a private directory, one direction each."""
