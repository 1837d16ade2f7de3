// A batch job in Go: goroutines allocate, collect and pass their results on; its output is one number.
package main

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

func main() {
	runtime.GOMAXPROCS(4)
	var group sync.WaitGroup
	results := make(chan uint64)
	for worker := uint64(0); worker < 50; worker++ {
		group.Add(1)
		go func(worker uint64) {
			defer group.Done()
			for round := uint64(0); round < 20; round++ {
				words := make([]uint64, 4096)
				x := 88172645463325252 + worker + round
				for i := range words {
					x ^= x << 13
					x ^= x >> 7
					x ^= x << 17
					words[i] = x
				}
				time.Sleep(500 * time.Microsecond)
				results <- words[len(words)-1]
			}
		}(worker)
	}
	go func() { group.Wait(); close(results) }()
	sum, count := uint64(0), 0
	for result := range results {
		sum += result
		if count++; count%200 == 0 {
			runtime.GC()
		}
	}
	fmt.Println(sum)
}
