"""Connections: clients of the control protocol and their resends, nodes of the network layer and of the tracker."""
