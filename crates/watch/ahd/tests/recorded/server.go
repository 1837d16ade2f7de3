// An HTTP server: /hang takes two locks in two orders (locks), reads from a channel nobody writes to (channel) or spins.
package main

import (
	"net/http"
	"os"
	"sync"
	"time"
)

var a, b sync.Mutex
var turn int

func hang(how string) {
	switch how {
	case "locks":
		a.Lock()
		defer a.Unlock()
		b.Lock()
	case "channel":
		<-make(chan int)
	case "spin":
		for i := 0; ; i++ {
			turn = i
		}
	}
}

func main() {
	how := os.Args[2]
	http.HandleFunc("/hang", func(w http.ResponseWriter, r *http.Request) { b.Lock(); hang(how) })
	http.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { time.Sleep(3 * time.Second) })
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.Lock(); a.Unlock(); w.Write([]byte("ok")) })
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}
