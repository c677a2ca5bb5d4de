//! MariaDB with tables and connections, and what its glibc says of all its arenas.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fs_err as fs;

use super::roots::Root;
use super::running::{Running, Talk};
use super::workshop::Workshop;
use crate::work;

/// Connections that stay.
const CONNECTIONS: usize = 8;

/// The server may take this long to open its socket.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts it with a library that asks glibc where a pipe says so, fills tables, and leaves it asleep.
pub(super) fn mariadb(workshop: &Workshop<'_>, root: &Root) -> Result<Running> {
    let source = "tests/targets/worlds/mallinfo.c";
    let library = root.put(&workshop.compile(source, "mallinfo.so", &["-shared", "-fPIC"])?)?;
    let data = root.inside.join("mariadb");
    let mut install = root.command(None, "/usr/bin/mariadb-install-db");
    install.arg(format!("--datadir={}", data.display()));
    install.args(["--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    work::read("make MariaDB's tables", "check what it says", &mut install)?;
    let socket = root.inside.join("mariadb.sock");
    let mut command = root.command(None, "/usr/bin/env");
    command.arg(format!("LD_PRELOAD={}", library.display()));
    command.arg(format!("MALLINFO={}", root.inside.join("ask").display()));
    command.args(["/usr/sbin/mariadbd", "--no-defaults", "--user=root", "--skip-networking"]);
    command.arg(format!("--datadir={}", data.display()));
    command.arg(format!("--socket={}", socket.display()));
    command.args(["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"]);
    command.args(["--skip-log-bin", "--performance-schema=OFF", "--innodb-use-native-aio=0"]);
    let mut server = Talk::start(command)?;
    server.expect(|line| line.contains("ready for connections"))?;
    let until = Instant::now() + START_TIMEOUT;
    while !root.scratch.join("mariadb.sock").exists() {
        if Instant::now() > until {
            bail!("MariaDB opens no socket");
        }
        thread::sleep(Duration::from_millis(50));
    }
    let client = || -> Result<Talk> {
        let mut command = root.command(None, "/usr/bin/mariadb");
        command.args(["--no-defaults", "--batch", "--skip-column-names", "--unbuffered"]);
        command.arg(format!("--socket={}", socket.display()));
        Talk::start(command)
    };
    let mut talks = Vec::new();
    let mut version = String::new();
    for number in 0..CONNECTIONS {
        let mut client = client()?;
        for line in work_of(number) {
            client.send(&line)?;
        }
        client.send("select concat('version ', version());")?;
        let line = client.expect(|line| line.starts_with("version "))?;
        line.trim_start_matches("version ")
            .split('-')
            .next()
            .unwrap_or_default()
            .clone_into(&mut version);
        talks.push(client);
    }
    fs::write(root.scratch.join("ask"), "?")?;
    let mut truth = server.json()?;
    truth["library"] = "MariaDB".into();
    truth["version"] = version.into();
    talks.push(server);
    Ok(Running { truth, talks, streams: Vec::new() })
}

/// What one connection asks for: a table of its own, a result that is sorted, statements that stay prepared.
fn work_of(number: usize) -> Vec<String> {
    let mut lines = vec![
        "create database if not exists worlds; use worlds;".to_owned(),
        format!("create table t{number} (id int primary key, b varchar(200));"),
        format!("insert into t{number} select seq, repeat('x', seq % 200) from seq_1_to_5000;"),
        format!("select count(*) from (select * from t{number} order by b desc, id) s;"),
    ];
    lines.extend((0..40).map(|statement| {
        format!(
            "prepare s{statement} from 'select {statement}, t.* from t{number} t where id > ?';"
        )
    }));
    lines
}
