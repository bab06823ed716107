package nic

// DatagramPort is datagramPort, for tests against captures.
var DatagramPort = datagramPort
