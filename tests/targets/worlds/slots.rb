# Objects, and holes in Ruby's heap pages. A forked child, whose heap is the same, prints the truth as one line of JSON
# and waits for a byte on stdin.
class Point
  def initialize(x)
    @x = x
    @y = x
  end
end

$keep = (0...6000).map { |i| Point.new(i) }
$keep.concat((0...6000).map { |i| "string number #{i}" })
$keep.concat((0...6000).map { |i| [i, i, i] })
junk = Array.new(300_000) { |i| "junk #{i}" }
$keep.concat((0...junk.size).step(37).map { |i| junk[i] })
junk = nil
GC.start
GC.start
GC.disable
$own = Process.pid
# The first round makes what the calls themselves keep.
2.times do |round|
  child = fork do
    live = GC.stat(:heap_live_slots)
    next if round == 0
    $stdout.write("{\"library\":\"Ruby\",\"version\":\"#{RUBY_VERSION}\",\"pid\":#{$own},\"live\":#{live}}\n")
    $stdout.flush
    $stdin.read(1)
  end
  Process.wait(child)
end
