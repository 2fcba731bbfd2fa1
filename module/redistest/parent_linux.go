package redistest

import "syscall"

// endWithParent has the kernel kill the server when the test binary dies before
// it could clean up.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
