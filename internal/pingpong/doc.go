// Package pingpong implements the protocol of ibv_rc_pingpong on a softroce NIC. Two programs
// exchange the addresses of their queue pairs over TCP, then send a message back and forth. Either
// end can be the stock program.
package pingpong
