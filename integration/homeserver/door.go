package main

import (
	"net"
	"net/http"
	"sync"
)

// receiveBytes is what the kernel takes of a connection before the host does: a
// body, and not the megabytes of one that is refused.
const receiveBytes = maxBodyBytes

// door bounds how many connections each address has.
type door struct {
	limit int // 0 is none

	mu   sync.Mutex
	open map[string]int // by address
}

func newDoor(limit int) *door { return &door{limit: limit, open: map[string]int{}} }

// watch is the [http.Server.ConnState]: it closes new connections that are too
// many, before anything is read of them.
func (d *door) watch(conn net.Conn, state http.ConnState) {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case http.StateNew:
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(receiveBytes) // else it stays as it is
		}
		d.open[host]++
		if d.limit > 0 && d.open[host] > d.limit {
			conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		if d.open[host]--; d.open[host] == 0 {
			delete(d.open, host)
		}
	}
}
