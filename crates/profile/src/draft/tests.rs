use super::*;
use crate::{Profile, Role};

fn function(shown: &str, address: u64) -> Function {
    Function {
        symbol: shown.to_owned(),
        shown: shown.to_owned(),
        at: shown.to_owned(),
        address,
        exported: true,
        ..Function::default()
    }
}

fn functions(names: &[&str]) -> Vec<Function> {
    names.iter().zip(1..).map(|(name, at)| function(name, at * 0x100)).collect()
}

fn request(object: &str) -> Request<'_> {
    Request {
        object,
        kind: Kind::Bulk,
        name: None,
        prefix: None,
        without_prototypes: Some("it has no debug information"),
        inlined_only: &[],
        members: &[],
        live: false,
    }
}

fn parsed(draft: &Draft) -> Profile {
    parse(&draft.text, &Source::File("draft.toml".into())).unwrap()
}

fn roles(profile: &Profile) -> Vec<(Role, String)> {
    profile.probes.iter().map(|probe| (probe.role, probe.at.to_string())).collect()
}

const NGINX: &[&str] = &[
    "ngx_create_pool",
    "ngx_destroy_pool",
    "ngx_reset_pool",
    "ngx_palloc",
    "ngx_pcalloc",
    "ngx_pfree",
    "ngx_alloc",
    "ngx_array_create",
    "ngx_array_destroy",
    "ngx_slab_init",
    "ngx_slab_alloc",
    "ngx_slab_free",
    "ngx_http_create_request",
];

fn kind(name: &str, pointers: u8) -> Type {
    let base = name.trim_end_matches("_t").to_owned();
    let record = !["void", "size_t", "int", "char"].contains(&name);
    Type { name: name.to_owned(), base, pointers, record }
}

fn prototype(parameters: &[(&str, &str, u8)], returns: Option<Type>) -> Signature {
    let parameters = parameters
        .iter()
        .map(|(name, of, pointers)| Parameter { name: (*name).into(), kind: kind(of, *pointers) })
        .collect();
    Signature { parameters, returns }
}

/// From names alone the pool's functions are found among all others, with roles and a word of warning; what
/// calls another one is left out.
#[test]
fn by_names() {
    let mut all = functions(NGINX);
    let palloc = all[3].address;
    all[4].calls = vec![palloc];
    let draft = draft(&request("nginx"), &all).unwrap();
    let profile = parsed(&draft);
    assert_eq!(profile.name, "nginx");
    let wanted = [
        (Role::Open, "ngx_create_pool"),
        (Role::Close, "ngx_destroy_pool"),
        (Role::Reset, "ngx_reset_pool"),
        (Role::Alloc, "ngx_palloc"),
        (Role::Free, "ngx_pfree"),
    ];
    assert_eq!(roles(&profile), wanted.map(|(role, at)| (role, at.to_owned())));
    assert!(draft.text.contains("# - ngx_pcalloc: it calls ngx_palloc"), "{}", draft.text);
    assert!(draft.text.contains("GUESSED from names alone: it has no debug information"));
    assert!(draft.text.contains("Other functions that open and close"), "{}", draft.text);
    assert_eq!(draft.levels, ["close", "boundary", "objects", "stacks"]);
    assert!(draft.text.contains("offers: close, boundary, objects, stacks."));
}

/// Prototypes say which argument is the granule, which the size, and which function has nothing to do with it.
#[test]
fn by_prototypes() {
    let mut all = functions(&[
        "apr_pool_create_ex",
        "apr_pool_destroy",
        "apr_pool_clear",
        "apr_palloc",
        "apr_pzalloc",
        "apr_pfree",
        "apr_pstrdup",
    ]);
    all[0].signature = Some(prototype(
        &[("newpool", "apr_pool_t", 2), ("parent", "apr_pool_t", 1)],
        Some(kind("int", 0)),
    ));
    all[1].signature = Some(prototype(&[("pool", "apr_pool_t", 1)], None));
    all[2].signature = Some(prototype(&[("pool", "apr_pool_t", 1)], None));
    all[3].signature = Some(prototype(
        &[("pool", "apr_pool_t", 1), ("in_size", "size_t", 0)],
        Some(kind("void", 1)),
    ));
    all[4].signature =
        Some(prototype(&[("m", "void", 1), ("n", "size_t", 0)], Some(kind("void", 1))));
    all[5].signature = Some(prototype(&[("pool", "apr_pool_t", 1), ("p", "void", 1)], None));
    let request = Request { without_prototypes: None, ..request("libapr-1.so.0") };
    let draft = draft(&request, &all).unwrap();
    let profile = parsed(&draft);
    assert_eq!(profile.name, "apr-1");
    let of = |role| profile.probes.iter().find(|probe| probe.role == role).unwrap();
    let said = |role: Role, key: &str| {
        of(role)
            .expressions
            .iter()
            .find(|(name, _)| name.name() == key)
            .map(|(_, expr)| expr.to_string())
    };
    assert_eq!(said(Role::Open, "granule").as_deref(), Some("*(u64)(arg0)"));
    assert_eq!(of(Role::Open).phase, crate::Phase::Return);
    assert_eq!(said(Role::Alloc, "granule").as_deref(), Some("arg0"));
    assert_eq!(said(Role::Alloc, "size").as_deref(), Some("arg1"));
    assert_eq!(said(Role::Free, "object").as_deref(), Some("arg1"));
    assert!(draft.text.contains("A granule is a apr_pool"), "{}", draft.text);
    assert!(draft.text.contains("apr_pzalloc: it takes no apr_pool"), "{}", draft.text);
}

/// `arena_free` that takes no arena frees a member, by its address; one that takes the arena closes it.
#[test]
fn frees_of_members() {
    let names = ["arena_open", "arena_close", "arena_alloc", "arena_free"];
    let mut all = functions(&names);
    let arena = || [("arena", "arena", 1)];
    all[0].signature = Some(prototype(&[("slot", "size_t", 0)], Some(kind("arena", 1))));
    all[1].signature = Some(prototype(&arena(), None));
    all[2].signature =
        Some(prototype(&[("arena", "arena", 1), ("size", "size_t", 0)], Some(kind("void", 1))));
    all[3].signature = Some(prototype(&[("object", "void", 1)], None));
    let request = Request { without_prototypes: None, kind: Kind::Drain, ..request("svc") };
    let found = draft(&request, &all).unwrap();
    let profile = parsed(&found);
    assert_eq!((profile.kind, found.follows_objects), (Kind::Drain, true));
    let free = profile.probes.iter().find(|probe| probe.role == Role::Free).unwrap();
    assert!(
        free.expressions
            .iter()
            .any(|(key, expr)| key.name() == "object" && expr.to_string() == "arg0")
    );
    all[3].signature = Some(prototype(&arena(), None));
    let found = draft(&request, &all);
    let closes = |draft: &Draft| {
        roles(&parsed(draft)).iter().filter(|(role, _)| *role == Role::Close).count()
    };
    assert!(found.as_ref().is_err() || closes(&found.unwrap()) == 2);
}

/// A C++ class's constructor opens and its destructor closes; a function that has two names is probed once.
#[test]
fn classes() {
    let mut all = functions(&["Arena::Arena", "Arena::~Arena", "Arena::Allocate"]);
    for (function, symbol) in
        all.iter_mut().zip(["_ZN5ArenaC1Ev", "_ZN5ArenaD1Ev", "_ZN5Arena8AllocateEm"])
    {
        symbol.clone_into(&mut function.symbol);
        symbol.clone_into(&mut function.at);
    }
    let twin =
        Function { symbol: "_ZN5ArenaC2Ev".into(), at: "_ZN5ArenaC2Ev".into(), ..all[0].clone() };
    all.push(twin);
    let draft = draft(&request("server"), &all).unwrap();
    let profile = parsed(&draft);
    assert_eq!(roles(&profile).len(), 3, "{}", draft.text);
    assert_eq!(profile.probes[0].at.to_string(), "_ZN5ArenaC1Ev");
    assert!(draft.text.contains("_ZN5ArenaC2Ev: another name"), "{}", draft.text);
}

/// What cannot be probed is not, and says why; with nothing left there is no draft but a reason.
#[test]
fn unfit_functions() {
    let mut all = functions(&["arena_open", "arena_close", "arena_alloc", "arena_reset.part.0"]);
    all[3].unfit = Some("a part of a function".into());
    let found = draft(&request("svc"), &all).unwrap();
    assert_eq!(parsed(&found).probes.len(), 3, "{}", found.text);
    all[1].unfit = Some("an IFUNC".into());
    let error = draft(&request("svc"), &all).unwrap_err().to_string();
    assert!(error.contains("none opens and closes") && error.contains("arena_alloc"), "{error}");
    assert!(draft(&request("svc"), &[]).is_err());
}

/// A prefix chooses among allocators, and names the profile where nothing else does.
#[test]
fn prefixes() {
    let all = functions(NGINX);
    let slab = Request { prefix: Some("ngx_array"), ..request("nginx") };
    let draft = draft(&slab, &all).unwrap();
    let profile = parsed(&draft);
    assert_eq!(profile.name, "ngx-array");
    assert_eq!(profile.probes[0].at.to_string(), "ngx_array_create");
}

/// Whatever names a binary has, the draft is a profile, and nothing escapes its comments.
#[test]
fn hostile_names() {
    let evil = "pool\n[match]\nsymbols = [\"x\"]\u{202e}";
    let mut all = functions(&["pool_create", "pool_destroy", "pool_alloc"]);
    for name in [evil, "pool_\"create\"", "pool_'\\_open"] {
        all.push(Function { unfit: Some(evil.into()), ..function(&format!("{name}_create"), 7) });
    }
    all[2].signature =
        Some(prototype(&[(evil, "pool_t", 1), ("size", "size_t", 0)], Some(kind("void", 1))));
    let inlined = [evil.to_owned()];
    let request = Request { object: evil, inlined_only: &inlined, ..request("x") };
    let draft = draft(&request, &all).unwrap();
    assert_eq!(parsed(&draft).rule.symbols.len(), 3);
    assert_eq!(draft.text.matches("\n[match]\n").count(), 1, "{}", draft.text);
}

/// What says what it opens goes before functions that every library has; a pool of something else does not get the
/// allocator's own functions for having the first letter in common.
#[test]
fn ranking() {
    let chosen = |names: &[&str]| {
        let draft = draft(&request("server"), &functions(names)).unwrap();
        let places: Vec<_> = roles(&parsed(&draft)).into_iter().map(|(_, at)| at).collect();
        (places, draft.text)
    };
    let (contexts, text) = chosen(&[
        "alloc_pool",
        "free_pool",
        "palloc",
        "pfree",
        "MemoryContextInit",
        "MemoryContextCreate",
        "MemoryContextDelete",
        "MemoryContextReset",
        "MemoryContextAlloc",
    ]);
    let wanted = ["Create", "Delete", "Reset", "Alloc"].map(|name| format!("MemoryContext{name}"));
    assert_eq!(contexts, wanted, "{text}");
    let (roots, text) = chosen(&[
        "my_open",
        "my_close",
        "my_mutex_init",
        "my_mutex_end",
        "my_malloc",
        "init_alloc_root",
        "alloc_root",
        "free_root",
    ]);
    assert_eq!(roots, ["init_alloc_root", "free_root", "alloc_root"], "{text}");
    let (spans, text) = chosen(&[
        "tc_new",
        "tc_delete",
        "tc_malloc",
        "MallocHook_AddNewHook",
        "MallocHook_RemoveDeleteHook",
        "PageHeap_New",
        "PageHeap_Delete",
    ]);
    assert_eq!(spans, ["PageHeap_New", "PageHeap_Delete"], "{text}");
}

/// Where a plain function calls one whose name says more, that one does its work, and is probed for both.
#[test]
fn what_does_the_work() {
    let mut all = functions(&[
        "my_pool_create",
        "my_pool_create_unmanaged",
        "my_pool_create_debug",
        "my_pool_destroy",
    ]);
    all[0].calls = vec![all[1].address];
    let draft = draft(&request("svc"), &all).unwrap();
    let places: Vec<_> = roles(&parsed(&draft)).into_iter().map(|(_, at)| at).collect();
    assert_eq!(places, ["my_pool_create_unmanaged", "my_pool_destroy"], "{}", draft.text);
}

/// Instances of a template are of one type: all are probed.
#[test]
fn instances_of_a_template() {
    let mut all = functions(&["Arena::Arena", "Arena::~Arena", "Arena::~Arena"]);
    let of = |number: &str| Signature {
        parameters: vec![Parameter {
            name: "this".into(),
            kind: Type {
                name: format!("Arena<{number}>"),
                base: format!("Arena<{number}>"),
                pointers: 1,
                record: true,
            },
        }],
        returns: None,
    };
    for (function, (at, number)) in
        all.iter_mut().zip([("c", "char"), ("d1", "char"), ("d2", "long")])
    {
        at.clone_into(&mut function.at);
        function.signature = Some(of(number));
    }
    let draft = draft(&request("svc"), &all).unwrap();
    assert_eq!(roles(&parsed(&draft)).len(), 3, "{}", draft.text);
    assert!(draft.text.contains("A granule is a Arena."), "{}", draft.text);
}
