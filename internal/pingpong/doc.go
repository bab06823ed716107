// Package pingpong holds the conversation of ibv_rc_pingpong over a softroce NIC: two
// programs tell each other over TCP where their queue pairs are, then one message
// travels back and forth on them. Either end can be the stock program.
package pingpong
