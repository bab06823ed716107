// Command other does not use RDMA.
package main

func main() {}
