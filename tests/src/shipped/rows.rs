//! The table: a row for each shipped profile.

use super::{
    live,
    row::{Except, Needs, Row},
    servers,
};

/// Why what only jemalloc has stays silent under a program that runs on any malloc.
const ITS_OWN: &str =
    "a function of jemalloc's own, which only programs that are written for it call";

/// The profiles, by name.
pub const ROWS: &[Row] = &[
    Row {
        profile: "apr",
        needs: Needs::Usual(&["subversion", "libapr1"]),
        files: &["/usr/lib/x86_64-linux-gnu/libapr-1.so.0"],
        absent: &[],
        silent: &[
            Except {
                what: "label apr_pool_tag",
                why: "the library tags a pool of its own as it starts, httpd those of requests, Subversion none",
            },
            Except {
                what: "open apr_pool_create_unmanaged_ex",
                why: "pools outside of the tree, which Subversion does not make",
            },
        ],
        start: live::svnserve,
    },
    Row {
        profile: "bind",
        needs: Needs::Real(&["bind9", "bind9-libs"]),
        files: &["/usr/lib/x86_64-linux-gnu/libisc-9*.so"],
        absent: &[],
        silent: &[
            Except {
                what: "open isc__mem_create_arena",
                why: "contexts for whole managers, which named makes at its start",
            },
            Except {
                what: "realloc isc__mem_reallocate",
                why: "no part of named that answers or loads a zone uses it",
            },
            Except {
                what: "realloc isc__mem_reget",
                why: "buffers that grow: large answers and transfers of zones",
            },
        ],
        start: servers::named,
    },
    Row {
        profile: "cpython",
        needs: Needs::Usual(&["python3"]),
        files: &["/usr/bin/python3.[0-9][0-9]"],
        absent: &[],
        silent: &[],
        start: live::python,
    },
    Row {
        profile: "cxx-pmr",
        needs: Needs::Usual(&["libstdc++6"]),
        files: &["/usr/lib/x86_64-linux-gnu/libstdc++.so.6"],
        absent: &[],
        silent: &[],
        start: || live::target("pmr", &["rounds=20"]),
    },
    Row {
        profile: "drainprof-usdt",
        needs: Needs::Nothing,
        files: &["usdt_granules"],
        absent: &[],
        silent: &[],
        start: || live::target("usdt_granules", &[]),
    },
    Row {
        profile: "epoch-demo",
        needs: Needs::Nothing,
        files: &["epoch_demo"],
        absent: &[],
        silent: &[],
        start: || live::target("epoch_demo", &["epochs=100"]),
    },
    Row {
        profile: "glibc-heap",
        needs: Needs::Usual(&["libc6", "libc6-dbg"]),
        files: &["/usr/lib/x86_64-linux-gnu/libc.so.6"],
        absent: &[],
        silent: &[],
        start: || live::target("heaps", &["mode=kinds"]),
    },
    Row {
        profile: "haproxy",
        needs: Needs::Real(&["haproxy"]),
        files: &["/usr/sbin/haproxy"],
        absent: &[],
        silent: &[],
        start: servers::haproxy,
    },
    Row {
        profile: "haproxy-pools",
        needs: Needs::Real(&["haproxy"]),
        files: &["/usr/sbin/haproxy"],
        absent: &[],
        silent: &[
            Except { what: "close pool_destroy", why: "pools live as long as the process" },
            Except { what: "open create_pool", why: "pools are made at the start" },
        ],
        start: servers::haproxy,
    },
    Row {
        profile: "libdrainprof",
        needs: Needs::Nothing,
        files: &["granule_calls"],
        absent: &[],
        silent: &[],
        start: || live::target("granule_calls", &[]),
    },
    Row {
        profile: "libxml2",
        needs: Needs::Real(&["libxml2-utils"]),
        files: &["/usr/lib/x86_64-linux-gnu/libxml2.so.2"],
        absent: &[],
        silent: &[],
        start: || live::target("xml_dicts", &["documents=50"]),
    },
    Row {
        profile: "malloc-glibc",
        needs: Needs::Usual(&["libc6"]),
        files: &["/usr/lib/x86_64-linux-gnu/libc.so.6"],
        absent: &[],
        silent: &[Except {
            what: "alloc pvalloc",
            why: "an old function that not every malloc has, and no program calls",
        }],
        start: || live::malloc(None),
    },
    Row {
        profile: "malloc-jemalloc",
        needs: Needs::Usual(&["libjemalloc2"]),
        files: &["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"],
        absent: &[
            Except { what: "pvalloc", why: "it is there from version 5.3.1 on" },
            Except { what: "free_sized", why: "it is there from version 5.3.1 on" },
        ],
        silent: &[
            Except { what: "alloc mallocx", why: ITS_OWN },
            Except { what: "realloc rallocx", why: ITS_OWN },
            Except { what: "realloc xallocx", why: ITS_OWN },
            Except { what: "free dallocx", why: ITS_OWN },
        ],
        start: || live::malloc(Some("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")),
    },
    Row {
        profile: "malloc-mimalloc",
        needs: Needs::Real(&["libmimalloc2.0"]),
        files: &["/usr/lib/x86_64-linux-gnu/libmimalloc.so.2"],
        absent: &[
            Except {
                what: "mi_theap_realloc",
                why: "reallocates from version 3.2 on; the probe is not for this one",
            },
            Except {
                what: "strdup",
                why: "replaced from version 2.1.4 on; the C library's calls malloc here",
            },
            Except {
                what: "strndup",
                why: "replaced from version 2.1.4 on; the C library's calls malloc here",
            },
            Except {
                what: "mi_free_small",
                why: "frees in version 3.6; the probe is not for this one",
            },
        ],
        silent: &[],
        start: || live::malloc(Some("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2")),
    },
    Row {
        profile: "malloc-tcmalloc",
        needs: Needs::Real(&["libtcmalloc-minimal4", "libgoogle-perftools4"]),
        files: &[
            "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
            "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4",
        ],
        absent: &[],
        silent: &[],
        start: || live::malloc(Some("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")),
    },
    Row {
        profile: "mariadb",
        needs: Needs::Real(&["mariadb-server"]),
        files: &["/usr/sbin/mariadbd"],
        absent: &[],
        silent: &[],
        start: servers::mariadb,
    },
    Row {
        profile: "mimalloc",
        needs: Needs::Real(&["libmimalloc2.0"]),
        files: &["/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0"],
        absent: &[],
        silent: &[],
        start: || live::target("mi_heaps", &[]),
    },
    Row {
        profile: "nginx",
        needs: Needs::Usual(&["nginx-light", "apache2-utils"]),
        files: &["/usr/sbin/nginx"],
        absent: &[],
        silent: &[
            Except {
                what: "alloc ngx_pmemalign",
                why: "buffers of direct I/O, which is off unless configured",
            },
            Except {
                what: "reset ngx_reset_pool",
                why: "no part of nginx that a plain server uses resets a pool",
            },
        ],
        start: live::nginx,
    },
    Row {
        profile: "otel-memory",
        needs: Needs::Nothing,
        files: &["usdt_otel"],
        absent: &[],
        silent: &[],
        start: || live::target("usdt_otel", &[]),
    },
    Row {
        profile: "php",
        needs: Needs::Real(&["php-cli"]),
        files: &["/usr/bin/php8.[0-9]"],
        absent: &[],
        silent: &[],
        start: live::php,
    },
    Row {
        profile: "postgresql",
        needs: Needs::Usual(&["postgresql-15"]),
        files: &["/usr/lib/postgresql/15/bin/postgres"],
        absent: &[
            Except {
                what: "AllocSetDelete",
                why: "closes contexts from version 16 on; the probe is not for this one",
            },
            Except {
                what: "GenerationDelete",
                why: "closes contexts from version 16 on; the probe is not for this one",
            },
            Except {
                what: "SlabDelete",
                why: "closes contexts from version 16 on; the probe is not for this one",
            },
            Except {
                what: "BumpDelete",
                why: "closes contexts from version 17 on; the probe is not for this one",
            },
        ],
        silent: &[
            Except {
                what: "alloc MemoryContextAllocHuge",
                why: "for what may be larger than a gigabyte; a plain session has nothing such",
            },
            Except {
                what: "alloc palloc_extended",
                why: "for what may fail: recovery and logical decoding, not a plain session",
            },
        ],
        start: live::postgres,
    },
    Row {
        profile: "talloc",
        needs: Needs::Real(&["libtalloc2"]),
        files: &["/usr/lib/x86_64-linux-gnu/libtalloc.so.2"],
        absent: &[],
        silent: &[],
        start: || live::target("talloc_calls", &[]),
    },
    Row {
        profile: "tcmalloc",
        needs: Needs::Real(&["libtcmalloc-minimal4", "python3"]),
        files: &["/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"],
        absent: &[],
        silent: &[],
        start: live::python_on_tcmalloc,
    },
    Row {
        profile: "temporal-slab",
        needs: Needs::Nothing,
        files: &["temporal"],
        absent: &[],
        silent: &[],
        start: || live::target("temporal", &["destroy=1"]),
    },
    Row {
        profile: "varnish",
        needs: Needs::Real(&["varnish"]),
        files: &["/usr/sbin/varnishd"],
        absent: &[],
        silent: &[],
        start: servers::varnish,
    },
    Row {
        profile: "varnish-workspace",
        needs: Needs::Real(&["varnish"]),
        files: &["/usr/sbin/varnishd"],
        absent: &[],
        silent: &[],
        start: servers::varnish,
    },
];
