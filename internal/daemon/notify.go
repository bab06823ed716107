package daemon

import (
	"net"
	"os"
	"time"
)

// notifyTimeout bounds the wait for a service manager that does not read.
const notifyTimeout = time.Second

// NotifyReady notifies the service manager that clients can attach, if the process was started with
// systemd's Type=notify protocol (sd_notify(3)). Otherwise it does nothing.
func NotifyReady() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path) // a leading "@" means an abstract socket to systemd and to net alike
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(notifyTimeout))
	_, err = c.Write([]byte("READY=1"))
	return err
}
