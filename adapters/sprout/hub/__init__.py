"""What connections share: the interface of a connection, stored nodes, names, rights and authors."""
