// Goroutines bound to threads of their own: inner functions that never return.
package main

import (
	"fmt"
	"runtime"
	"syscall"
)

type keeper struct{ n int }

//go:noinline
func (k *keeper) hold(fds []int) int {
	b := make([]byte, 1)
	n, _ := syscall.Read(fds[0], b)
	return n + k.n
}

//go:noinline
func middle(k *keeper, fds []int) int {
	return k.hold(fds) + 1
}

func main() {
	runtime.LockOSThread()
	fds := make([]int, 2)
	if err := syscall.Pipe(fds); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	fmt.Println(middle(&keeper{3}, fds))
}
