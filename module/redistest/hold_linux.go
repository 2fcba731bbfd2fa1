package redistest

import "syscall"

// holdPort keeps a port from others while its server is stopped, and returns
// what lets go of it. Nobody listens: who connects is refused. Where the port
// cannot be held, it is not.
func holdPort(port int) (letGo func()) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	// Only the binding is to overlook what is left of the server's connections.
	reuse := func(value int) {
		_ = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, value)
	}
	reuse(1)
	_ = syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	reuse(0)
	return func() { syscall.Close(socket) }
}
