package redistest

import "syscall"

// endWithParent lets the kernel kill the server with the test binary.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
