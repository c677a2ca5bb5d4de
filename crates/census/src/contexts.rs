//! The memory contexts of a PostgreSQL backend (13 to 18), also of one that is busy.
//!
//! A context begins with its node's tag at 0, the bytes that it has at 8, its parent at 24, its first child at 32, its
//! siblings at 40 and 48, its name at 56 and its ident at 64. What follows depends on its kind. All contexts of a tag are
//! of one kind, and in the shape that most of them match. Source: `src/include/nodes/memnodes.h`.
//!
//! Contexts lie in the heap of glibc: they are a view of memory that its census has already counted.

mod kinds;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use self::kinds::{SHAPES, Shape, Sums};
use crate::{
    model::{Context, ContextKind},
    pages::Reader,
    space::Space,
};

/// Most contexts that are read.
const MAX_CONTEXTS: usize = 1 << 18;
/// Most contexts, blocks and free chunks that are visited, all attempts together.
const MAX_STEPS: u64 = 1 << 22;
/// Reads of a piece that makes no sense, before it is passed over.
const ATTEMPTS: u32 = 4;
/// Contexts of a tag that say which shape it has.
const SAMPLE: usize = 64;
/// Longest name that is believed, bytes, and longest ident that is kept, characters.
const MAX_NAME: usize = 128;
const MAX_IDENT: usize = 64;
/// Node tags and bytes are below these.
const MAX_TAG: u64 = 1 << 16;
const MAX_BYTES: u64 = 1 << 47;
/// What hash tables are called, whose ident is what the server calls them.
const HASH: &str = "dynahash";
/// The name of a context of a library, which is not read to learn it.
const UNREAD: &str = "(name not in memory)";

/// What was found.
pub(crate) struct Contexts {
    /// Each after its parent.
    pub(crate) contexts: Vec<Context>,
    /// What was not seen, in sentences.
    pub(crate) notes: Vec<String>,
}

/// A context of the tree.
struct Node {
    address: u64,
    tag: u64,
    parent: Option<usize>,
    level: u64,
    name: u64,
    ident: u64,
}

/// Reads the tree of which `top` is the address of the pointer to its root. With idents, which can be SQL, or without.
pub(crate) fn read(space: &Space<'_>, top: u64, idents: bool) -> Contexts {
    let reader = Reader::new(space, MAX_STEPS);
    let mut tree = Tree { reader, names: HashMap::new(), seen: HashSet::new(), broken: 0 };
    let all = tree.nodes(top);
    let shapes = tree.shapes(&all);
    let is_root_known = all.first().and_then(|root| shapes.get(&root.tag)).is_some();
    if !is_root_known {
        // A postmaster that has just begun has none.
        let text = "PostgreSQL: its memory contexts are of no known layout, or it has none";
        return Contexts { contexts: Vec::new(), notes: vec![text.to_owned()] };
    }
    let contexts =
        all.iter().map(|node| tree.context(node, shapes.get(&node.tag).copied(), idents));
    let contexts: Vec<Context> = contexts.collect();
    let unknown = contexts.iter().filter(|context| context.free_bytes.is_none()).count();
    let mut notes = Vec::new();
    if tree.broken > 0 {
        notes.push(format!(
            "PostgreSQL: {} lists of contexts changed while they were read; the rest of each is missing",
            tree.broken
        ));
    }
    if unknown > 0 {
        notes.push(format!(
            "PostgreSQL: blocks of {unknown} contexts are not known: swapped out, changed while they were read, or of \
             no known layout"
        ));
    }
    if all.len() >= MAX_CONTEXTS || tree.reader.steps == 0 {
        notes.push("PostgreSQL: there are more contexts or blocks than are read".to_owned());
    }
    Contexts { contexts, notes }
}

struct Tree<'a> {
    reader: Reader<'a>,
    names: HashMap<u64, Option<String>>,
    seen: HashSet<u64>,
    /// Lists of children that could not be read to their end.
    broken: u64,
}

/// What all contexts begin with.
struct Header {
    node: Node,
    first_child: u64,
    next: u64,
}

impl Tree<'_> {
    /// The contexts, each after its parent, in the order of the server's own view.
    fn nodes(&mut self, top: u64) -> Vec<Node> {
        let mut nodes = Vec::new();
        let root = self.reader.word(top, 0).unwrap_or_default();
        let Some(root) = self.header(root, 0, 0).filter(|root| root.next == 0) else {
            return nodes;
        };
        self.seen.insert(root.node.address);
        let mut open = vec![(root, None, 0)];
        while let Some((header, parent, level)) = open.pop() {
            let index = nodes.len();
            let most = MAX_CONTEXTS.saturating_sub(index + 1 + open.len());
            let address = header.node.address;
            nodes.push(Node { parent, level, ..header.node });
            let mut children = self.children(address, header.first_child, most);
            children.reverse();
            open.extend(children.into_iter().map(|child| (child, Some(index), level + 1)));
        }
        nodes
    }

    /// The children of a context. A list that changes while it is read is read again; then its begin counts.
    fn children(&mut self, parent: u64, first: u64, room: usize) -> Vec<Header> {
        let mut best = Vec::new();
        let mut first = Some(first);
        for _ in 0..ATTEMPTS {
            let (mut list, mut before) = (Vec::new(), 0);
            let mut next = first.unwrap_or_default();
            while next != 0 && list.len() < room {
                let is_new = !self.seen.contains(&next);
                let Some(header) = self.header(next, parent, before).filter(|_| is_new) else {
                    break;
                };
                (before, next) = (next, header.next);
                // With its name, and what it adds up to.
                if self.reader.keep::<[u64; 32]>().is_none() {
                    break;
                }
                list.push(header);
            }
            let is_whole = next == 0 || list.len() >= room;
            if list.len() >= best.len() {
                best = list;
            }
            if is_whole {
                self.seen.extend(best.iter().map(|child| child.node.address));
                return best;
            }
            self.reader.pages.forget();
            first = self.reader.word(parent, 32);
        }
        self.broken += 1;
        self.seen.extend(best.iter().map(|child| child.node.address));
        best
    }

    /// The context at an address, where it is one of this parent and follows this sibling.
    fn header(&mut self, address: u64, parent: u64, before: u64) -> Option<Header> {
        self.reader.step()?;
        if !address.is_multiple_of(8) || !self.reader.is_heap(address) {
            return None;
        }
        let [tag, bytes, methods, own_parent, first_child, own_before, next, name, ident, _] =
            self.reader.pages.words(address)?;
        // After the tag: whether it is reset, and whether it may be used in critical sections.
        let (tag, flags) = (tag & 0xffff_ffff, tag >> 32 & 0xffff);
        let is_context = (1..MAX_TAG).contains(&tag)
            && flags & !0x101 == 0
            && bytes < MAX_BYTES
            && methods != 0
            && own_parent == parent
            && own_before == before
            && self.name(name).is_some();
        let node = Node { address, tag, parent: None, level: 0, name, ident };
        is_context.then_some(Header { node, first_child, next })
    }

    /// The shape of each tag: the one that most of its contexts match.
    fn shapes(&mut self, nodes: &[Node]) -> BTreeMap<u64, Shape> {
        let mut samples: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for node in nodes {
            let sample = samples.entry(node.tag).or_default();
            if sample.len() < SAMPLE {
                sample.push(node.address);
            }
        }
        let mut shapes = BTreeMap::new();
        for (tag, sample) in samples {
            let mut best = (0, None);
            for shape in SHAPES {
                let match_one = |address: &&u64| self.reader.sums(**address, shape).is_some();
                let matching = sample.iter().filter(match_one).count();
                if matching > best.0 {
                    best = (matching, Some(shape));
                }
            }
            // What only a few match by chance is no layout.
            if let (matching, Some(shape)) = best
                && matching * 2 > sample.len()
            {
                shapes.insert(tag, shape);
            }
        }
        shapes
    }

    /// The blocks of a context; read again where they change.
    fn sums(&mut self, address: u64, shape: Shape) -> Option<Sums> {
        (0..ATTEMPTS).find_map(|attempt| {
            if attempt > 0 {
                self.reader.pages.forget();
            }
            self.reader.sums(address, shape)
        })
    }

    fn context(&mut self, node: &Node, shape: Option<Shape>, idents: bool) -> Context {
        let sums = shape.and_then(|shape| self.sums(node.address, shape));
        let name = self.name(node.name).unwrap_or_default();
        let is_hash = name == HASH;
        let ident = if idents || is_hash { self.ident(node.ident) } else { None };
        let (name, ident) = match ident {
            Some(ident) if is_hash => (ident, None),
            ident => (name, ident),
        };
        let allocated = self.reader.word(node.address, 8).filter(|bytes| *bytes < MAX_BYTES);
        Context {
            name,
            ident,
            level: node.level,
            parent: node.parent.map(|index| index as u64),
            kind: shape.map_or(ContextKind::Unknown, Shape::kind),
            total_bytes: sums.map_or(allocated.unwrap_or_default(), |sums| sums.total),
            free_bytes: sums.and_then(|sums| sums.free),
            blocks: sums.map(|sums| sums.blocks),
        }
    }

    /// A context's name: text that the program has as a constant.
    fn name(&mut self, address: u64) -> Option<String> {
        if let Some(known) = self.names.get(&address) {
            return known.clone();
        }
        let name = match self.reader.text(address, MAX_NAME) {
            None => self.reader.is_constant(address).then(|| UNREAD.to_owned()),
            text => text.filter(|text| {
                !text.is_empty() && text.len() < MAX_NAME && !text.chars().any(char::is_control)
            }),
        };
        if self.names.len() < MAX_CONTEXTS {
            self.names.insert(address, name.clone());
        }
        name
    }

    /// A context's ident. It can be SQL, and comes from a user.
    fn ident(&mut self, address: u64) -> Option<String> {
        let text = self.reader.text(address, MAX_IDENT * 4)?;
        let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        Some(shown.take(MAX_IDENT).collect())
    }
}
