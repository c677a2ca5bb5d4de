use super::*;

/// Whatever a text says, its memory is bounded, and the walk ends.
#[test]
fn bounded() {
    let most = "ffffffffffffffff";
    for text in [
        "map 0 7fffffffffff file\n".repeat(3),
        "map 0 7fffffffffff heap\nmap 100000 7fffffffffff anonymous\nslow".to_owned(),
        format!("map 0 1000 heap\nfill 0 {most} 0 1 1"),
        format!("piece 0 {most}\npiece 8 8\nfill 0 {most} 8 1 {most}"),
        format!("range {most} {most} {most} anonymous constant\nput fffffffffffffff8 1 2 3"),
        format!("map 1000 8000 heap\nabsent {most} {most}\nabsent 0 {most}\nabsent 2000"),
        format!("map 1000 8000 heap\ntorn {most} 1\nguard {most}\npointer {most}\npointer 8ff8"),
        format!("map 1000 8000 heap\nroot {most} nginx\nroot 1000 apr\nroot 1ff8 postgres"),
    ] {
        let process = Described::new(&text);
        assert!(process.held <= MOST_BYTES && process.present <= MOST_PRESENT, "{text}");
        let walked = process.walk();
        assert!(walked.read_bytes <= 64 << 20, "{text}: {walked:?}");
    }
}

/// Words, holes and torn words are where a text says.
#[test]
fn grammar() {
    let process = Described::new(
        "map 1000 3000 anonymous\nabsent 2000\nput 1008 a b\nfill 1100 3 20 1 2 5 0\ntorn 1010 c\n\
         range 8000 2000 1000 file constant\npiece 9000 8\nno line\nput",
    );
    let memory = &process.memory;
    let word = |at| {
        let mut bytes = [0; 8];
        memory.read(at, &mut bytes).then(|| u64::from_le_bytes(bytes))
    };
    assert_eq!([0x1008, 0x1120, 0x1128, 0x1140].map(word), [10, 3, 5, 5].map(Some));
    let torn = [word(0x1010), word(0x1010)];
    assert!(torn.contains(&Some(11)) && torn.contains(&Some(12)), "{torn:?}");
    assert_eq!([word(0x8000), word(0x9000), word(0x9008)], [None, Some(0), None]);
    let present = memory.present(0x1000, 0x4000);
    assert_eq!([0x1000, 0x2000, 0x3000].map(|at| present.contains(at)), [true, false, true]);
    assert_eq!((process.bytes(), process.ranges.len()), (6 * PAGE, 2));
}
