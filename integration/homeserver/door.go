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
	switch state {
	case http.StateNew:
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(receiveBytes) // else it stays as it is
		}
		if open := d.add(conn, 1); d.limit > 0 && open > d.limit {
			conn.Close()
		}
	case http.StateClosed, http.StateHijacked:
		d.add(conn, -1)
	}
}

// add counts the connections of an address, and returns how many there are.
func (d *door) add(conn net.Conn, n int) (open int) {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[host] += n
	if open = d.open[host]; open == 0 {
		delete(d.open, host)
	}
	return open
}
