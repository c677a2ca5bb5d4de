// Objects of many sizes of Go's heap, of which three in ten stay, large ones, and goroutines with deep stacks.
// The truth is printed as one line of JSON from memory that is there before it is read.
package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
)

var sizes = []int{16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416,
	448, 480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048, 2304, 2688, 3072, 3200, 3456,
	4096, 4864, 5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728, 10240, 10880, 12288, 13568, 14336, 16384, 18432}

var plain [][]byte
var pointers [][]*int
var large [][]byte
var sink []byte
var sinkPointers []*int

func deep(n int) int {
	var pad [128]byte
	pad[n%128] = 1
	if n == 0 {
		return int(pad[0])
	}
	return deep(n-1) + int(pad[n%128])
}

func fill() {
	for _, size := range sizes {
		for i := 0; i < 400; i++ {
			sink = make([]byte, size)
			sinkPointers = make([]*int, size/8)
			if i%10 < 3 {
				plain = append(plain, sink)
				pointers = append(pointers, sinkPointers)
			}
		}
	}
	for i := 0; i < 12; i++ {
		sink = make([]byte, 100000+i*50000)
		if i%3 == 0 {
			large = append(large, sink)
		}
	}
	sink, sinkPointers = nil, nil
}

var m runtime.MemStats
var text = make([]byte, 0, 1<<16)

func put(name string, number uint64) {
	text = append(text, '"')
	text = append(text, name...)
	text = append(text, "\":"...)
	text = strconv.AppendUint(text, number, 10)
}

func main() {
	in := make([]byte, 1)
	stop := make(chan bool)
	for i := 0; i < 200; i++ {
		go func() { deep(40); <-stop }()
	}
	fill()
	pid, version := uint64(os.Getpid()), runtime.Version()
	debug.SetGCPercent(-1)
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	text = append(text, "{\"library\":\"Go\",\"version\":\""...)
	for i := 2; i < len(version) && version[i] != ' ' && version[i] != '-'; i++ {
		text = append(text, version[i])
	}
	text = append(text, "\",\"classes\":{"...)
	comma := ""
	for _, class := range m.BySize {
		if class.Size > 0 && class.Mallocs > class.Frees {
			text = append(text, comma...)
			text = append(text, '"')
			text = strconv.AppendUint(text, uint64(class.Size), 10)
			text = append(text, "\":"...)
			text = strconv.AppendUint(text, class.Mallocs-class.Frees, 10)
			comma = ","
		}
	}
	text = append(text, "},"...)
	put("stacks", m.StackInuse)
	text = append(text, ',')
	put("mapped", m.HeapSys)
	text = append(text, ',')
	put("pid", pid)
	text = append(text, "}\n"...)
	// What package os has for this may allocate.
	syscall.Write(1, text)
	syscall.Read(0, in)
	runtime.KeepAlive(plain)
	runtime.KeepAlive(pointers)
	runtime.KeepAlive(large)
}
