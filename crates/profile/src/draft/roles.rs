//! What each function of a group means, and where its values stand.

use std::collections::BTreeSet;

use super::{
    Function, MAX_PROBES, Request, Signature, Type,
    group::{Candidate, Group},
    members,
    shown::clean,
    words::Deed,
};

/// Most records of granules: instances of a template are types of their own.
const MAX_RECORDS: usize = 8;
/// Arguments that a probe can name.
const MAX_ARGUMENT: usize = 6;
/// Names of parameters that are sizes, and numbers of things of a size.
const SIZES: &[&str] = &["size", "len", "length", "bytes", "nbytes", "sz", "n", "amount", "nbyte"];
const NUMBERS: &[&str] = &["nmemb", "count", "number", "nelem", "nitems", "num", "elements"];

/// Names of parameters that are numbers of granules.
const ID_NAMES: &[&str] = &[
    "id",
    "epoch",
    "index",
    "idx",
    "slot",
    "gen",
    "generation",
    "handle",
    "arena",
    "region",
    "granule",
];

/// A probe of the draft.
#[derive(Clone, Debug)]
pub(super) struct Chosen<'a> {
    pub(super) function: &'a Function,
    pub(super) deed: Deed,
    /// Keys and values, in order.
    pub(super) keys: Vec<(&'static str, String)>,
    /// What a person must look at.
    pub(super) remarks: Vec<String>,
}

/// What became of a group's functions.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice<'a> {
    pub(super) probes: Vec<Chosen<'a>>,
    /// Functions that are not probed, and why.
    pub(super) left_out: Vec<(&'a Function, String)>,
    /// The type of a granule, where it is known.
    pub(super) granule: Option<String>,
}

/// Decides what each function of a group means.
pub(super) fn choose<'a>(group: &Group<'a>) -> Choice<'a> {
    let mut choice = Choice {
        granule: granule_type(group),
        left_out: group.dropped.clone(),
        ..Choice::default()
    };
    let ids = id_name(group, choice.granule.as_deref());
    let mut used: BTreeSet<u64> = BTreeSet::new();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let frees = group.having(Deed::Free).any(|candidate| candidate.function.unfit.is_none());
    for deed in [Deed::Open, Deed::Close, Deed::Reset, Deed::Alloc, Deed::Realloc, Deed::Free] {
        for candidate in group.having(deed) {
            let function = candidate.function;
            let why = function
                .unfit
                .clone()
                .or_else(|| wrapper(candidate, group))
                .or_else(|| foreign(deed, function, choice.granule.as_deref()));
            if let Some(why) = why {
                choice.left_out.push((function, why));
            } else if !used.insert(function.address) || !named.insert(&function.at) {
                choice.left_out.push((function, "another name of a function above".to_owned()));
            } else if choice.probes.len() == MAX_PROBES {
                choice.left_out.push((function, format!("more than {MAX_PROBES} functions")));
            } else {
                let known = Known { granule: choice.granule.as_deref(), id: ids.as_deref(), frees };
                let probe = probe(candidate, known);
                choice.probes.push(probe);
            }
        }
    }
    choice
}

/// The record that a close or reset takes first, and where its granule stands.
fn closed_record(function: &Function) -> Option<(&Type, usize)> {
    let signature = function.signature.as_ref()?;
    let by_value = signature.returns.as_ref().is_some_and(|kind| kind.record && kind.pointers == 0);
    let at = signature.parameters.iter().position(|p| p.kind.pointers == 1 && p.kind.record)?;
    let place = at + usize::from(by_value);
    (place < MAX_ARGUMENT).then_some((&signature.parameters[at].kind, place))
}

/// The records that closes and resets take, as prototypes name them, and with the scope of their functions.
pub(super) fn granule_records(group: &Group<'_>) -> Vec<(String, String)> {
    let mut records: Vec<(String, String)> = Vec::new();
    for candidate in group.having(Deed::Close).chain(group.having(Deed::Reset)) {
        let Some((kind, _)) = closed_record(candidate.function) else { continue };
        let shown = &candidate.function.shown;
        // `ns::Arena<int>::close`: the type's own name may have `::` in its arguments.
        let scope = shown.find(generic(&kind.base)).map_or("", |at| &shown[..at]);
        let record = (kind.base.clone(), format!("{scope}{}", kind.base));
        if !kind.base.is_empty() && !records.contains(&record) && records.len() < MAX_RECORDS {
            records.push(record);
        }
    }
    records
}

/// Has the closes read what granules say of themselves: the expressions that they read.
pub(super) fn read_members(choice: &mut Choice<'_>, request: &Request<'_>) -> Vec<String> {
    let closes = |probe: &&mut Chosen<'_>| matches!(probe.deed, Deed::Close | Deed::Reset);
    let mut reads = Vec::new();
    for probe in choice.probes.iter_mut().filter(closes) {
        let Some((kind, at)) = closed_record(probe.function) else { continue };
        let granule = format!("arg{at}");
        // Granules with numbers are described elsewhere.
        if !probe.keys.contains(&("granule", granule.clone())) {
            continue;
        }
        let live = members::live(request.members, &kind.base).map(|member| member.read(&granule));
        let bytes = members::bytes(request.members, &kind.base).map(|member| member.read(&granule));
        if let Some(bytes) = &bytes {
            probe.keys.push(("bytes", bytes.clone()));
        }
        match &live {
            Some(live) if request.live => probe.keys.push(("live", live.clone())),
            Some(live) => probe.remarks.push(format!(
                "is this its live count, 0 when it is empty? Then: live = \"{live}\""
            )),
            None => {}
        }
        reads.extend([live, bytes].into_iter().flatten());
    }
    reads.sort();
    reads.dedup();
    reads
}

/// What most of the opens return, or hand out, or most of the closes take.
fn granule_type(group: &Group<'_>) -> Option<String> {
    let opened = group.having(Deed::Open).filter_map(|candidate| {
        let signature = candidate.function.signature.as_ref()?;
        let out = signature.parameters.iter().find(|p| p.kind.pointers == 2 && p.kind.record);
        record(signature.returns.as_ref()).or_else(|| out.map(|p| p.kind.base.clone()))
    });
    let closed =
        group.having(Deed::Close).chain(group.having(Deed::Reset)).filter_map(|candidate| {
            let signature = candidate.function.signature.as_ref()?;
            let first =
                signature.parameters.iter().find(|p| p.kind.pointers > 0 && p.kind.record)?;
            Some(first.kind.base.clone())
        });
    let all: Vec<String> = closed.chain(opened).collect();
    let most = all.iter().max_by_key(|name| {
        (all.iter().filter(|other| other == name).count(), std::cmp::Reverse((*name).clone()))
    })?;
    Some(generic(most).to_owned())
}

/// A type without its parameters: instances of a template have functions of their own, and one meaning.
fn generic(name: &str) -> &str {
    name.split('<').next().map(str::trim_end).filter(|own| !own.is_empty()).unwrap_or(name)
}

fn record(kind: Option<&Type>) -> Option<String> {
    kind.filter(|kind| kind.record && kind.pointers == 1 && !kind.base.is_empty())
        .map(|kind| kind.base.clone())
}

/// What is known of the whole group.
#[derive(Clone, Copy)]
struct Known<'k> {
    /// The type of a granule, or of an allocator whose granules have numbers.
    granule: Option<&'k str>,
    /// The name of the parameter that is a granule's number.
    id: Option<&'k str>,
    /// Objects are freed one by one.
    frees: bool,
}

/// The name of the number by which closes distinguish granules of one allocator, if they do.
fn id_name(group: &Group<'_>, granule: Option<&str>) -> Option<String> {
    group.having(Deed::Close).chain(group.having(Deed::Reset)).find_map(|candidate| {
        let parameters = &candidate.function.signature.as_ref()?.parameters;
        let [first, second, ..] = &parameters[..] else { return None };
        let of = granule.is_some_and(|granule| generic(&first.kind.base) == granule);
        let number = second.kind.pointers == 0 && !second.kind.record;
        let name = second.name.to_lowercase();
        let is_id =
            ID_NAMES.iter().any(|known| name == *known || name.ends_with(&format!("_{known}")));
        (of && number && is_id).then_some(name)
    })
}

/// A function that calls another one of the same meaning would count twice.
fn wrapper(candidate: &Candidate<'_>, group: &Group<'_>) -> Option<String> {
    let own = candidate.function;
    let inner = group.having(candidate.reading.deed).find(|other| {
        let other = other.function;
        other.unfit.is_none()
            && other.address != own.address
            && own.calls.contains(&other.address)
            && !other.calls.contains(&own.address)
    })?;
    Some(format!("it calls {}, whose hit counts", clean(&inner.function.shown)))
}

/// A function that is known not to take the granule belongs to another allocator.
fn foreign(deed: Deed, function: &Function, granule: Option<&str>) -> Option<String> {
    let signature = function.signature.as_ref()?;
    let granule = granule?;
    let takes =
        signature.parameters.iter().any(|parameter| generic(&parameter.kind.base) == granule);
    let gives = signature.returns.as_ref().is_some_and(|kind| generic(&kind.base) == granule);
    match deed {
        Deed::Alloc | Deed::Close | Deed::Reset if !takes => {
            Some(format!("it takes no {}", clean(granule)))
        }
        Deed::Open if !takes && !gives => {
            Some(format!("it neither returns nor fills in a {}", clean(granule)))
        }
        _ => None,
    }
}

/// Where the values of a function stand.
fn probe<'a>(candidate: &Candidate<'a>, known: Known<'_>) -> Chosen<'a> {
    let function = candidate.function;
    let deed = candidate.reading.deed;
    let mut chosen = Chosen { function, deed, keys: Vec::new(), remarks: Vec::new() };
    match &function.signature {
        Some(signature) => by_prototype(&mut chosen, signature, known),
        None => by_name(&mut chosen, candidate, known.frees),
    }
    chosen
}

fn by_prototype(chosen: &mut Chosen<'_>, signature: &Signature, known: Known<'_>) {
    let Known { granule, id, frees } = known;
    // A record that is returned by value comes through a hidden first argument.
    let by_value = signature.returns.as_ref().is_some_and(|kind| kind.record && kind.pointers == 0);
    let shift = usize::from(by_value);
    let is_granule = |kind: &Type| {
        kind.pointers > 0 && granule.is_some_and(|granule| generic(&kind.base) == granule)
    };
    let parameters = &signature.parameters;
    let find = |wanted: &dyn Fn(&Type, &str) -> bool| {
        parameters
            .iter()
            .position(|parameter| wanted(&parameter.kind, &parameter.name.to_lowercase()))
            .map(|at| at + shift)
            .filter(|at| *at < MAX_ARGUMENT)
    };
    let place = find(&|kind, _| is_granule(kind));
    let double =
        place.and_then(|at| parameters.get(at - shift)).is_some_and(|p| p.kind.pointers > 1);
    let returns_granule = signature.returns.as_ref().is_some_and(is_granule);
    let size = size_of(signature, shift);
    let pointer = find(&|kind, _| kind.pointers > 0 && !is_granule(kind));
    // A number distinguishes granules, and what was taken for the granule is the allocator.
    let number = id.and_then(|id| find(&|kind, name| kind.pointers == 0 && name == id));
    let numbered = |chosen: &mut Chosen<'_>| {
        let Some(id) = id else { return false };
        match number {
            Some(at) => chosen.keys.push(("granule", format!("arg{at}"))),
            None if chosen.deed == Deed::Open && signature.returns.is_some() => {
                chosen.keys.push(("granule", "ret".into()));
            }
            None => {
                chosen.keys.push(("granule", format!("arg{}", place.unwrap_or(shift))));
                chosen.remarks.push(format!(
                    "granules have numbers (`{}`): where is the one that this is about? Perhaps in memory: \
                     *(u32)(arg0 + 0x..)",
                    clean(id)
                ));
            }
        }
        true
    };
    let deed = chosen.deed;
    match deed {
        Deed::Open | Deed::Close | Deed::Reset if id.is_some() => {
            numbered(chosen);
        }
        Deed::Open => {
            let returned = Returned { granule: returns_granule, by_value };
            opened(chosen, returned, place, double);
        }
        Deed::Close | Deed::Reset => {
            let at = place.unwrap_or(shift);
            let value = if double { format!("*(u64)(arg{at})") } else { format!("arg{at}") };
            chosen.keys.push(("granule", value));
        }
        Deed::Alloc => {
            if !numbered(chosen) {
                chosen.keys.push(("granule", format!("arg{}", place.unwrap_or(shift))));
            }
            let plain = |kind: &Type| !["char", "void", ""].contains(&kind.base.as_str());
            let out = find(&|kind, _| {
                !is_granule(kind)
                    && (kind.pointers > 1 || kind.pointers == 1 && !kind.record && plain(kind))
            });
            let returned = signature.returns.as_ref().is_some_and(|kind| kind.pointers > 0);
            match (returned, out, frees) {
                (false, Some(at), _) => chosen.keys.push(("object", format!("*(u64)(arg{at})"))),
                (_, _, true) => chosen.keys.push(("object", "ret".into())),
                _ => {}
            }
            chosen.keys.extend(size.map(|size| ("size", size)));
            chosen.keys.push(("when", "ret != 0".into()));
            if !returned {
                chosen.remarks.push("it returns no pointer: what does `ret` say?".into());
            }
        }
        Deed::Free => {
            let at = pointer.or_else(|| find(&|kind, _| !is_granule(kind))).unwrap_or(shift);
            chosen.keys.push(("object", format!("arg{at}")));
            if signature.returns.as_ref().is_some_and(|kind| kind.pointers == 0) {
                chosen.keys.push(("when", "ret != 0".into()));
                chosen.remarks.push("guessed: what it returns is true where it has freed".into());
            } else if pointer.is_some() {
                chosen.keys.push(("when", format!("arg{at} != 0")));
            }
        }
        Deed::Realloc => {
            chosen.keys.extend(place.map(|at| ("granule", format!("arg{at}"))));
            let at = pointer.unwrap_or(shift);
            chosen.keys.push(("object", format!("arg{at}")));
            chosen.keys.extend(size.map(|size| ("size", size)));
        }
    }
}

/// What an open returns.
#[derive(Clone, Copy)]
struct Returned {
    /// A pointer to a granule.
    granule: bool,
    /// A record, through a hidden first argument.
    by_value: bool,
}

/// Where an open's granule stands; `double`: it is handed out through a pointer.
fn opened(chosen: &mut Chosen<'_>, returned: Returned, place: Option<usize>, double: bool) {
    match (returned.granule, place) {
        (true, _) => {
            chosen.keys.push(("granule", "ret".into()));
            chosen.keys.push(("when", "ret != 0".into()));
        }
        (false, Some(at)) if double => {
            chosen.keys.push(("granule", format!("*(u64)(arg{at})")));
            chosen.keys.push(("phase", "return".into()));
            chosen.remarks.push("does it return a status? Then add a `when`".into());
        }
        (false, Some(at)) => chosen.keys.push(("granule", format!("arg{at}"))),
        (false, None) if returned.by_value => {
            chosen.keys.push(("granule", "arg0".into()));
            chosen.remarks.push(
                    "it is returned by value: it moves, and its address is not its id; is there another?"
                        .into(),
                );
        }
        (false, None) => {
            chosen.keys.push(("granule", "ret".into()));
            chosen.keys.push(("when", "ret != 0".into()));
            chosen.remarks.push("where is the granule's id?".into());
        }
    }
}

/// The argument that says how many bytes, or the product of two.
fn size_of(signature: &Signature, shift: usize) -> Option<String> {
    let is = |parameter: &super::Parameter, names: &[&str]| {
        let name = parameter.name.to_lowercase();
        parameter.kind.pointers == 0
            && !parameter.kind.record
            && names.iter().any(|known| name == *known || name.ends_with(&format!("_{known}")))
    };
    let at = |names: &[&str]| {
        signature
            .parameters
            .iter()
            .position(|parameter| is(parameter, names))
            .map(|at| at + shift)
            .filter(|at| *at < MAX_ARGUMENT)
    };
    match (at(SIZES), at(NUMBERS)) {
        (Some(size), Some(number)) => Some(format!("arg{number} * arg{size}")),
        (Some(size), None) => Some(format!("arg{size}")),
        _ => {
            let typed = signature.parameters.iter().position(|parameter| {
                parameter.kind.pointers == 0 && parameter.kind.name == "size_t"
            })?;
            Some(format!("arg{}", typed + shift))
        }
    }
}

fn by_name(chosen: &mut Chosen<'_>, candidate: &Candidate<'_>, frees: bool) {
    let reading = &candidate.reading;
    // Methods have their object first, and so have most functions about one.
    match chosen.deed {
        Deed::Open if reading.verb == "constructor" => {
            chosen.keys.push(("granule", "arg0".into()));
        }
        Deed::Open if matches!(reading.verb.as_str(), "init" | "begin" | "start" | "advance") => {
            chosen.keys.push(("granule", "arg0".into()));
            chosen.remarks.push("guessed: it prepares what its first argument points to".into());
        }
        Deed::Open => {
            chosen.keys.push(("granule", "ret".into()));
            chosen.keys.push(("when", "ret != 0".into()));
            chosen.remarks.push(
                "guessed: it returns the granule; if it fills in a pointer: granule = \"*(u64)(arg0)\", \
                 phase = \"return\""
                    .into(),
            );
        }
        Deed::Close | Deed::Reset => {
            chosen.keys.push(("granule", "arg0".into()));
            if reading.verb != "destructor" {
                chosen.remarks.push("guessed: the granule is its first argument".into());
            }
        }
        Deed::Alloc => {
            chosen.keys.push(("granule", "arg0".into()));
            if frees {
                chosen.keys.push(("object", "ret".into()));
            }
            chosen.keys.push(("size", "arg1".into()));
            chosen.keys.push(("when", "ret != 0".into()));
            chosen.remarks.push("guessed: (granule, size), and it returns the object".into());
        }
        Deed::Free => {
            chosen.keys.push(("object", "arg1".into()));
            chosen.keys.push(("when", "arg1 != 0".into()));
            chosen
                .remarks
                .push("guessed: (granule, object); if it takes the object alone: arg0".into());
        }
        Deed::Realloc => {
            chosen.keys.push(("granule", "arg0".into()));
            chosen.keys.push(("object", "arg1".into()));
            chosen.keys.push(("size", "arg2".into()));
            chosen.remarks.push("guessed: (granule, object, size)".into());
        }
    }
}
