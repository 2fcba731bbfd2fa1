package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports of the servers lie below the range from which operating systems
// usually take the ports of outgoing connections, and so do the ports of the
// cluster bus, 10000 above. Such a port is not taken by chance while its server
// is stopped, nor can a client that dials it connect to itself.
const (
	firstPort    = 10000
	portCount    = 10000
	busOffset    = 10000
	portAttempts = 200
)

// A portPicker proposes a port for a server. Somebody else may take the port
// before the server does, so the caller must be ready to ask again.
type portPicker func() (int, error)

// freePort picks a port on which nobody listens.
func freePort() (int, error) {
	return pickPort(isFree)
}

// freeClusterPort picks a port on which nobody listens, nor on the port of its
// cluster bus.
func freeClusterPort() (int, error) {
	return pickPort(func(port int) bool {
		return isFree(port) && isFree(port+busOffset)
	})
}

// pickPort tries ports at random, because other processes look for free ports
// at the same time.
func pickPort(usable func(port int) bool) (int, error) {
	for range portAttempts {
		port := firstPort + rand.IntN(portCount)
		if usable(port) {
			return port, nil
		}
	}
	return 0, errors.New("found no free port")
}

// isFree asks the kernel whether the port can be listened on.
func isFree(port int) bool {
	listener, err := net.Listen("tcp4", localAddr(port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

func localAddr(port int) string {
	return net.JoinHostPort(localhost, strconv.Itoa(port))
}
