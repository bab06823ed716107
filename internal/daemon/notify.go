package daemon

import (
	"net"
	"os"
)

// NotifyReady tells the service manager that started this process, if one did that wants to
// know (systemd's Type=notify, sd_notify(3)), that clients can attach.
func NotifyReady() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path) // "@" begins an abstract name for both
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("READY=1"))
	return err
}
