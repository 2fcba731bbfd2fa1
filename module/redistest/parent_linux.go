package redistest

import "syscall"

// endWithParent makes the kernel kill the server when the test binary is killed.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
