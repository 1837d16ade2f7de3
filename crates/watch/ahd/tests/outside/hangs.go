// An HTTP server that hangs as public reports describe it: read_lock, send_under_lock, pool_exhausted, write_under_lock; the reports are listed in reports.txt.
package main

import (
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

var state sync.RWMutex
var events = make(chan int)
var mutex sync.Mutex

// The receiver holds the read lock while it waits for a message that never comes.
func receives(c net.Conn) {
	state.RLock()
	defer state.RUnlock()
	c.Read(make([]byte, 1))
}

// The only one who takes events off the channel takes the mutex in another case first.
func monitor(resets chan bool) {
	for {
		select {
		case <-events:
		case <-resets:
			mutex.Lock()
			mutex.Unlock()
		}
	}
}

// Two connections for all: whoever needs a second one while it has one waits for the others, which do the same.
var pool = make(chan int, 2)

func needsTwo() {
	one := <-pool
	time.Sleep(100 * time.Millisecond)
	two := <-pool
	pool <- two
	pool <- one
}

// Writes to a peer that reads nothing, with the lock that all requests take.
var peer net.Listener

func writes() {
	peer, _ = net.Listen("tcp", "127.0.0.1:0")
	c, _ := net.Dial("tcp", peer.Addr().String())
	mutex.Lock()
	c.Write(make([]byte, 64<<20))
	mutex.Unlock()
}

func main() {
	how := os.Args[2]
	pool <- 1
	pool <- 2
	resets := make(chan bool)
	go monitor(resets)
	http.HandleFunc("/hang", func(w http.ResponseWriter, r *http.Request) {
		if how == "read_lock" {
			l, _ := net.Listen("tcp", "127.0.0.1:0")
			c, _ := net.Dial("tcp", l.Addr().String())
			go receives(c)
			c.Write([]byte("x"))
			state.Lock()
		} else if how == "pool_exhausted" {
			needsTwo()
		} else if how == "write_under_lock" {
			writes()
		} else {
			mutex.Lock()
			resets <- true
			events <- 1
		}
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		state.RLock()
		mutex.Lock()
		mutex.Unlock()
		state.RUnlock()
		w.Write([]byte("ok"))
	})
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}
