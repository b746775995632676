"""What the server says of its own API, made from the table of routes and the fields that they declare."""
