// Command other has nothing to do with RDMA.
package main

func main() {}
