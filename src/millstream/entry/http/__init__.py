"""Routes and the HTTP server around them."""
