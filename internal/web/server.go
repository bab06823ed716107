package web

import (
	"crypto/rand"
	"crypto/subtle"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"softroce/internal/daemon"
	"softroce/internal/htmlpage"
	"softroce/internal/metrics"
)

// What the page consists of.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
)

const (
	requestTimeout = 10 * time.Second
	maxConnections = 64
)

// A Server serves the page of a daemon.
type Server struct {
	daemon    *daemon.Daemon
	host      string // of the address in its configuration
	addr      net.Addr
	token     string
	tokenFile string
	sampler   sampler
	captures  captures
	http      http.Server
	serving   sync.WaitGroup
}

// Serve serves the page of d on addr, which is HOST:PORT, with the metrics. The operator's token is
// in a file beside the socket of d, which only the daemon's user can read, until Close.
func Serve(d *daemon.Daemon, addr, release string, log *slog.Logger) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("web: %w", err)
	}
	s := &Server{daemon: d, addr: l.Addr(), token: rand.Text(), tokenFile: d.Socket() + ".token"}
	s.host, _, _ = net.SplitHostPort(addr)
	s.sampler.take, s.captures.daemon, s.captures.limit = d.Snapshot, d, maxPackets
	if err := writeToken(s.tokenFile, s.token); err != nil {
		l.Close()
		return nil, fmt.Errorf("web: %w", err)
	}
	s.http = http.Server{
		Handler: s.handler(metrics.Handler(d, release)), ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	s.serving.Go(func() {
		if err := s.http.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the live page ended", "err", err)
		}
	})
	return s, nil
}

// writeToken replaces the file of a daemon that was killed. It does not follow a link, nor write to
// a file of another user.
func writeToken(file, token string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, token+"\n")
	return errors.Join(err, f.Close())
}

// URL returns the address of the page.
func (s *Server) URL() string { return fmt.Sprintf("http://%v/", s.addr) }

// TokenFile returns the name of the file with the operator's token.
func (s *Server) TokenFile() string { return s.tokenFile }

// Close ends the requests and captures, and removes the captures and the token.
func (s *Server) Close() error {
	err := s.http.Close()
	s.serving.Wait()
	return errors.Join(err, s.captures.close(), os.Remove(s.tokenFile))
}

func (s *Server) handler(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	for path, file := range map[string]struct{ kind, text string }{
		"/{$}": {"text/html", pageHTML}, "/page.js": {"text/javascript", htmlpage.UPlotJS + "\n" + pageJS}, "/page.css": {"text/css", htmlpage.UPlotCSS + pageCSS},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind+"; charset=utf-8")
			io.WriteString(w, file.text)
		})
	}
	mux.HandleFunc("GET /state", s.state)
	mux.HandleFunc("GET /psn", s.psn)
	mux.HandleFunc("POST /captures", s.operatorOnly(s.captures.start))
	mux.HandleFunc("POST /captures/{id}/stop", s.operatorOnly(s.captures.stop))
	mux.HandleFunc("DELETE /captures/{id}", s.operatorOnly(s.captures.remove))
	// The operator alone knows the id of a capture, so links to it work.
	mux.HandleFunc("GET /captures/{id}/packets.pcapng", s.captures.download)
	mux.HandleFunc("GET /captures/{id}/report", s.captures.report)
	return s.guard(http.NewCrossOriginProtection().Handler(mux))
}

// policy lets the page load its own files and nothing else, and no other page embed it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; img-src data:"

// guard refuses requests for another host. A page of that host, whose name its owner made resolve
// to this address, could otherwise read the replies.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.isOwnHost(r.Host) {
			http.Error(w, fmt.Sprintf("host %q: want an IP address, localhost or the host of --web", r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) isOwnHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost") || host != "" && strings.EqualFold(host, s.host)
}

// isOperator reports whether a request has the token. A header is no cookie: a browser does not add
// it to requests of other pages.
func (s *Server) isOperator(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

func (s *Server) operatorOnly(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.isOperator(r) {
			s.refuse(w)
			return
		}
		f(w, r)
	}
}

func (s *Server) refuse(w http.ResponseWriter) {
	http.Error(w, "the operator's token is missing or wrong; it is in "+s.tokenFile, http.StatusUnauthorized)
}
