// A Go program to be entered: goroutines compute and sleep, threads come and go, the runtime preempts by signals. It says
// "ready ADDRESS" and keeps its state at that address, as subject.c.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

var state [9]uint64

func compute() uint64 {
	a, b := 1.0, 0.5
	x := uint64(88172645463325252)
	for i := 0; i < 100000; i++ {
		a = a*1.000001 + b
		b = b*0.999999 + 0.25
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x ^ uint64(a*1e3) ^ uint64(b*1e6)
}

func main() {
	expected := compute()
	for i := 0; i < 4; i++ {
		go func() {
			for {
				if compute() != expected {
					atomic.AddUint64(&state[1], 1)
				}
				atomic.AddUint64(&state[0], 1)
			}
		}()
	}
	for i := 0; i < 8; i++ {
		go func() {
			for {
				time.Sleep(time.Millisecond)
				garbage := make([]byte, 100000)
				garbage[0] = 1
				runtime.KeepAlive(garbage)
			}
		}()
	}
	go func() {
		for {
			done := make(chan bool)
			go func() { runtime.LockOSThread(); done <- true }()
			<-done
			time.Sleep(time.Millisecond)
		}
	}()
	fmt.Printf("%x ready\n", uintptr(unsafe.Pointer(&state)))
	byte := make([]byte, 1)
	for {
		if n, _ := os.Stdin.Read(byte); n == 0 {
			select {}
		}
	}
}
