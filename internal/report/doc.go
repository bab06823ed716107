// Package report writes the page of `softroce report`: one HTML file, without network access, that
// shows the verdict on a capture, its connections, and every packet.
//
// The way from the file to the page:
//
//  1. internal/check judges the capture in two passes: the flows and their opposite directions,
//     which packets are copies of a mirror port, then the verdict, the violations, what was sent
//     again.
//  2. Another pass (analysis.go) assigns each packet to a connection (connection.go) and to the
//     stream of requests that it belongs to (stream.go): unwrapped PSNs, what is outstanding,
//     latencies, credits. Each packet becomes a point (point.go), and the points of a run of
//     packets a block (level.go).
//  3. page.go writes the page. Points and lines of text are in chunks, which the page unpacks when
//     it shows them; blocks are the levels of detail that it draws of more packets than it can draw
//     one by one.
//
// Everything in a capture may be hostile. Tables are written by html/template; all else is JSON or
// base64 in elements that are not executed, and becomes text nodes. The page's content security
// policy allows only its own scripts, by their hashes, and no connection.
//
// Memory is bounded: see the limits in analysis.go and stream.go. What exceeds them is not on the
// page, which says so.
package report
