//! The broker that a hub brings itself.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use crate::broker::free_port;
use crate::harness::{Agent, Hub, options, own, presence_of, welcome, with_password};

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::start(folder.path(), own(port, None), None).await;
    let error = hub.task.await.unwrap().unwrap_err().to_string();
    assert!(error.contains(&format!("the broker cannot listen on 127.0.0.1:{port}")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_log_in_with_the_hubs_token() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let hub = Hub::start(folder.path(), own(port, Some("secret")), Some("secret")).await;
    hub.connected_to_broker(true).await;
    let agent = Agent::start("pi", with_password(options(port), "pi", "secret")).await;
    let (_socket, answer) = agent.dial("pi", Some("secret")).await;
    assert!(welcome(&answer).is_ok());
    hub.agent_when("pi", |view| view.connected && presence_of(view) == "online").await;

    // Connect packets of MQTT 3.1.1 with a keep-alive of 20 s: nobody, and a wrong password.
    let nobody = b"\x10\x0d\0\x04MQTT\x04\x02\0\x14\0\x01x".to_vec();
    let wrong = b"\x10\x17\0\x04MQTT\x04\xc2\0\x14\0\x01x\0\x02pi\0\x04none".to_vec();
    for connect in [nobody, wrong] {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.write_all(&connect).unwrap();
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut socket, &mut answer).ok();
        assert_eq!(answer, [0x20, 2, 0, 5], "not authorized");
    }
    agent.leave().await;
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_bytes_harm_neither_hub_nor_broker() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let hub = Hub::start(folder.path(), own(port, None), None).await;
    hub.connected_to_broker(true).await;
    let connect = b"\x10\x0d\0\x04MQTT\x04\x02\0\x14\0\x01x";
    let bad_name = b"\x10\x0d\0\x04MQTT\x04\x02\0\x14\0\x01#";
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        b"\x10\xff\xff\xff\x7f",
        b"\x10\x02\0\x04",
        &[connect, &b"\x30\x05\0\xffabc"[..]].concat(),
        &[connect, &b"\x82\x02\0\x01"[..]].concat(),
        &[connect, &b"\x40\x02\0\x09"[..]].concat(),
        &[connect, &b"\x30\x04\0\x02\xff\xfe"[..]].concat(),
        bad_name,
        bad_name,
        bad_name,
    ] {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        socket.write_all(bytes).ok();
        std::io::Read::read(&mut socket, &mut [0; 64]).ok();
    }
    let agent = Agent::start("pi", options(port)).await;
    hub.agent_when("pi", |view| presence_of(view) == "online").await;
    agent.leave().await;
    hub.stop().await;
}
