"""How processes talk: typed msgpack over zmq `ipc://` sockets in a private directory, one direction each."""
