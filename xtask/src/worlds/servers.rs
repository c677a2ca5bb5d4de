//! Servers with work done, and what they say of their memory.
//!
//! They listen on sockets in the world's directory; nothing has a network. Each function starts one, loads it, asks it,
//! and leaves it asleep.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fs_err as fs;
use serde_json::{Map, Value, json};

use super::roots::Root;
use super::running::{Running, Talk};
use super::workshop::Workshop;
use crate::work;

/// A server may take this long to an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// After this many answers of Redis its threads' caches have no more to give back: they have fewer sizes.
const SETTLING_ANSWERS: usize = 100;

/// Redis with 20,000 keys, and what its jemalloc says of each size.
pub(super) fn redis(_: &Workshop<'_>, root: &Root) -> Result<Running> {
    let socket = root.inside.join("redis.sock");
    let mut command = root.command(None, "/usr/bin/redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--activedefrag", "no"]);
    command.args(["--hz", "1", "--dynamic-hz", "no", "--daemonize", "no", "--logfile", ""]);
    command
        .args(["--unixsocketperm", "777", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(&root.inside);
    let mut talk = Talk::start(command)?;
    talk.expect(|line| line.contains("eady to accept connections"))?;
    let mut client = Client::new(&root.scratch.join("redis.sock"))?;
    for key in 0..20_000 {
        client.ask(&format!("SET key:{key} {}", "v".repeat(key % 700 + 1)))?;
    }
    for key in (0..20_000).step_by(2) {
        client.ask(&format!("DEL key:{key}"))?;
    }
    // Often before: each answer takes what it takes to answer, and empties the thread's cache of one size by a part.
    for _ in 0..SETTLING_ANSWERS {
        client.ask("MEMORY MALLOC-STATS")?;
    }
    let info = client.ask("INFO")?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let allocator = field("mem_allocator:jemalloc-").context("Redis has another allocator")?;
    let version = allocator.split('-').next().unwrap_or_default().trim();
    let stats = client.ask("MEMORY MALLOC-STATS")?;
    let truth = json!({
        "library": "jemalloc", "version": version, "pid": talk.pid(), "classes": sizes(&stats)?,
        "program": format!("Redis {}", field("redis_version:").unwrap_or_default().trim()),
    });
    Ok(Running { truth, talks: vec![talk], streams: vec![client.stream.into_inner()] })
}

/// Live objects by size in jemalloc's tables, whose columns are found by their names.
fn sizes(stats: &str) -> Result<Value> {
    let mut sizes = Map::new();
    // Sums have lines with these names as well, before the tables.
    let (_, stats) = stats.split_once("\nbins:").context("jemalloc prints no bins")?;
    let stats = format!("bins:{stats}");
    for (title, end, count) in
        [("bins:", "large:", "curregs"), ("large:", "extents:", "curlextents")]
    {
        let mut lines = stats.lines().skip_while(|line| !line.starts_with(title));
        let names: Vec<_> = lines.next().context("no table")?.split_whitespace().skip(1).collect();
        let column = |name: &str| {
            names.iter().position(|own| *own == name).with_context(|| format!("no column {name}"))
        };
        let (size, count) = (column("size")?, column(count)?);
        for line in lines.take_while(|line| !line.starts_with(end)) {
            let cells: Vec<u64> =
                line.split_whitespace().map_while(|cell| cell.parse().ok()).collect();
            if let (Some(size), Some(objects)) = (cells.get(size), cells.get(count))
                && *objects > 0
            {
                sizes.insert(size.to_string(), (*objects).into());
            }
        }
    }
    Ok(Value::Object(sizes))
}

/// A connection to Redis.
struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    fn new(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("no server at {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks one thing; words have no spaces. An error is one of ours.
    fn ask(&mut self, line: &str) -> Result<String> {
        write!(self.stream.get_mut(), "{line}\r\n").context("write to Redis")?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).context("read from Redis")?;
        let answer = answer.trim_end();
        if answer.starts_with('-') {
            bail!("Redis answers {line} with {answer}");
        }
        // A text has its length before it: `$5`, or `=9` with four letters for its kind.
        let Some(length) = answer.strip_prefix(['$', '=']) else { return Ok(answer.to_owned()) };
        let mut text = vec![0; length.parse::<usize>().context("a length")? + 2];
        self.stream.read_exact(&mut text).context("read a text from Redis")?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Connections to nginx, and how many of them are in the middle of a request.
const CONNECTIONS: usize = 20;
const REQUESTS: usize = 8;

/// nginx with connections, some of which have begun a request.
pub(super) fn nginx(workshop: &Workshop<'_>, root: &Root) -> Result<Running> {
    let socket = root.scratch.join("nginx.sock");
    let inside = root.inside.display();
    let text = format!(
        "user root; daemon off; worker_processes 1; error_log stderr notice;\n\
         pid {inside}/nginx.pid; events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_header_timeout 600;\n\
         server {{ listen unix:{inside}/nginx.sock; location / {{ return 204; }} }} }}\n"
    );
    let configuration = workshop.file(root, "nginx.conf", &text)?;
    let mut command = root.command(None, "/usr/sbin/nginx");
    command.arg("-c").arg(configuration);
    let mut talk = Talk::start(command)?;
    talk.expect(|line| line.contains("start worker process "))?;
    let master = talk.pid();
    let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
    let worker = children.split_whitespace().next().context("nginx has no worker")?.to_owned();
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(&socket).context("connect to nginx")?;
        if number < REQUESTS {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: worlds\r\nX-Un")?;
        }
        streams.push(stream);
    }
    let mut ask = root.command(None, "/usr/sbin/nginx");
    let output = ask.arg("-v").output().context("ask nginx for its version")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let version = said.split_once("nginx/").context("nginx prints no version")?.1;
    let version = version.split_whitespace().next().unwrap_or_default();
    let truth = json!({
        "library": "nginx", "version": version, "pid": worker.parse::<u32>()?,
        "contexts": {"configuration": 1, "connection": CONNECTIONS, "request": REQUESTS},
    });
    Ok(Running { truth, talks: vec![talk], streams })
}

/// PostgreSQL with a session that has worked, and the contexts of its backend as the server logs them.
pub(super) fn postgresql(_: &Workshop<'_>, root: &Root) -> Result<Running> {
    let versions = fs::read_dir(root.outside("/usr/lib/postgresql"))?;
    let versions = versions.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = versions.max_by_key(|name| name.parse::<u32>().unwrap_or_default());
    let binaries = format!("/usr/lib/postgresql/{}/bin", newest.context("no PostgreSQL")?);
    let data = root.inside.join("pg");
    let user = Some("postgres");
    let mut initdb = root.command(user, format!("{binaries}/initdb"));
    initdb.arg("-D").arg(&data).args(["-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8"]);
    work::read("make a cluster", "check what initdb says", &mut initdb)?;
    let mut command = root.command(user, format!("{binaries}/postgres"));
    command.arg("-D").arg(&data).arg("-k").arg(&root.inside);
    for setting in [
        "listen_addresses=",
        "fsync=off",
        "shared_buffers=16MB",
        "dynamic_shared_memory_type=mmap",
        "autovacuum=off",
        "jit=off",
        "max_parallel_workers_per_gather=0",
    ] {
        command.args(["-c", setting]);
    }
    let mut server = Talk::start(command)?;
    server.expect(|line| line.contains("ready to accept connections"))?;
    let psql = || -> Result<Talk> {
        let mut command = root.command(user, format!("{binaries}/psql"));
        command.arg("-h").arg(&root.inside).args(["-X", "-q", "-A", "-t", "postgres"]);
        Talk::start(command)
    };
    let mut session = psql()?;
    for number in 0..20 {
        session.send(&format!("prepare p{number} as select {number} + count(*) from pg_class;"))?;
        session.send(&format!("execute p{number} \\g /dev/null"))?;
    }
    session
        .send("create table t as select g, repeat('x', 100) b from generate_series(1, 3000) g;")?;
    session.send("begin; declare c cursor for select * from t order by b, g desc;")?;
    session.send("fetch 3 from c \\g /dev/null")?;
    session.send(
        "select 'backend ' || pg_backend_pid() || ' ' || current_setting('server_version');",
    )?;
    let line = session.expect(|line| line.starts_with("backend "))?;
    let mut words = line.split_whitespace().skip(1);
    let pid: u32 = words.next().context("a process")?.parse().context("a process id")?;
    let version = words.next().context("a version")?.to_owned();
    let mut other = psql()?;
    other.send(&format!("select pg_log_backend_memory_contexts({pid}) \\g /dev/null"))?;
    let sum = server.expect(|line| line.contains("Grand total: "))?;
    drop(other);
    let [total, blocks, free] = grand_total(&sum).with_context(|| format!("read {sum}"))?;
    let truth = json!({
        "library": "PostgreSQL", "version": version, "pid": pid,
        "total": total, "blocks": blocks, "free": free,
    });
    Ok(Running { truth, talks: vec![session, server], streams: Vec::new() })
}

/// `Grand total: 1 bytes in 2 blocks; 3 free (4 chunks); 5 used`.
fn grand_total(line: &str) -> Option<[u64; 3]> {
    let (_, rest) = line.split_once("Grand total: ")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let before = |word: &str| -> Option<u64> {
        let at = words.iter().position(|own| own.starts_with(word))?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    Some([before("bytes")?, before("blocks")?, before("free")?])
}

#[cfg(test)]
mod tests {
    use super::{grand_total, sizes};

    /// The last line of what PostgreSQL logs of a backend.
    #[test]
    fn postgresql_sum() {
        let line = "LOG:  Grand total: 1593832 bytes in 242 blocks; 495344 free (147 chunks); 1098488 used";
        assert_eq!(grand_total(line), Some([1_593_832, 242, 495_344]));
        assert_eq!(grand_total("LOG:  level: 1; TopMemoryContext"), None);
    }

    /// Tables of both kinds of sizes; what is empty is left out.
    #[test]
    fn jemalloc_sizes() {
        let stats = "large:  1 2\nbins:  size ind curregs curslabs\n   8 0 5 1\n   16 1 0 0\n   ---\n\
                     large:  size ind curlextents\n   16384 36 2\nextents:  size\n   4096 9\n";
        let sizes = sizes(stats).unwrap();
        assert_eq!(sizes, serde_json::json!({"8": 5, "16384": 2}));
    }
}
