use std::path::Path;

use super::*;
use crate::testing::Waiting;

/// The bias of our own executable turns a symbol's address into the one that runs.
#[test]
fn own_bias() {
    let me = Process::myself().unwrap();
    let image = Image::load(&me, &ImageOptions::default(), &mut ElfCache::new()).unwrap();
    let main = image.objects.iter().find(|object| object.is_main).unwrap();
    let biases = main.biases();
    assert_eq!(biases.len(), 1);
    // A function of this very test, whose address we know.
    let here = own_bias as fn() as usize as u64;
    let elf = main.elf.as_ref().unwrap();
    let found = elf.symbol_at(here.wrapping_sub(biases[0])).unwrap();
    assert!(found.name.contains("own_bias"), "{}", found.name);
    assert_eq!(elf.resolve(&found.name)[0].vaddr.wrapping_add(biases[0]), here);
}

/// The second process with the same libraries finds them in the cache, under its own paths.
#[test]
fn shared_objects_are_read_once() {
    let mut cache = ElfCache::new();
    let mut load = |child: &Waiting| {
        let process = Process::open(child.pid()).unwrap();
        Image::load(&process, &ImageOptions::default(), &mut cache).unwrap()
    };
    let (first, second) =
        (Waiting::start(Path::new("/bin/cat")), Waiting::start(Path::new("/bin/cat")));
    let (a, b) = (load(&first), load(&second));
    assert!(a.objects.len() >= 2);
    assert_eq!(a.objects.len(), b.objects.len());
    assert_eq!(cache.entries.len(), a.objects.len());
    let path = b.objects[0].elf.as_ref().unwrap().open_path().to_owned();
    assert!(path.starts_with(format!("/proc/{}", second.pid())), "{path:?}");
    assert_eq!(a.objects.iter().filter(|object| object.is_main).count(), 1);
}

/// A segment that starts inside a page and a mapping that starts at one agree on the bias.
#[test]
fn bias_of_unaligned_segments() {
    let segment = crate::elf::Segment {
        vaddr: 0x401_234,
        memory_size: 0x900,
        file_offset: 0x1234,
        file_size: 0x900,
        executable: true,
    };
    assert_eq!(bias_of(0x40_1000, 0x40_2000, 0x1000, &segment), Some(0));
    assert_eq!(
        bias_of(0x7f00_0040_1000, 0x7f00_0040_2000, 0x1000, &segment),
        Some(0x7f00_0000_0000)
    );
    assert_eq!(bias_of(0x40_0000, 0x40_1000, 0, &segment), None, "the page before");
    let hostile = crate::elf::Segment { file_offset: u64::MAX, ..segment };
    assert_eq!(bias_of(0x1000, u64::MAX, u64::MAX - 3, &hostile), None);
}
