//! How fast a stream is over the hub's own broker and over Mosquitto, beside TCP on the same machine: round trips of 100 bytes, 250 KB
//! up and 250 KB down, and bytes without a pause. `cargo run --example stream_rate [ROUNDS]`

#[path = "../tests/mosquitto/broker.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "it is the tests', which use all of it and fail by panicking")]
mod broker;

use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use omnilearn_mqtt::address::BrokerUrl;
use omnilearn_mqtt::broker::{Broker, BrokerConfig};
use omnilearn_mqtt::client::{Client, ClientConfig, Greeting};
use omnilearn_mqtt::options::Options;
use omnilearn_mqtt::stream::{Acceptor, Dialer};
use omnilearn_mqtt::topics::Topics;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers each question of so many bytes with as many.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: usize, rounds: usize) -> std::io::Result<()> {
    let mut buffer = vec![1; bytes];
    for _ in 0..rounds {
        stream.read_exact(&mut buffer).await?;
        stream.write_all(&buffer).await?;
        stream.flush().await?;
    }
    // The stream ends when the other end has everything.
    stream.read_exact(&mut [0]).await.map(|_| ())
}

async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    bytes: usize,
    rounds: usize,
) -> std::io::Result<Vec<Duration>> {
    let (question, mut answer) = (vec![2; bytes], vec![0; bytes]);
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        stream.write_all(&question).await?;
        stream.flush().await?;
        stream.read_exact(&mut answer).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

async fn measure<A, B>(name: &str, asking: A, answering: B, rounds: usize) -> Result<(), Box<dyn Error>>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut asking, mut answering) = (asking, answering);
    for bytes in [100, 250_000] {
        let echoing = tokio::spawn(async move { echo(&mut answering, bytes, rounds).await.map(|()| answering) });
        let times = ask(&mut asking, bytes, rounds).await?;
        asking.write_all(&[0]).await?;
        answering = echoing.await??;
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
        println!(
            "{name}: {bytes} bytes there and back: median {:.3} ms, 90 % {:.3} ms, longest {:.3} ms",
            at(0.5),
            at(0.9),
            at(1.0)
        );
    }
    const BULK: usize = 200 << 20;
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 20];
        let mut left = BULK;
        while left > 0 {
            left -= answering.read(&mut buffer).await?;
        }
        answering.write_all(&[0]).await.map(|()| answering)
    });
    let begun = Instant::now();
    let piece = vec![3; 1 << 20];
    for _ in 0..BULK >> 20 {
        asking.write_all(&piece).await?;
    }
    asking.read_exact(&mut [0]).await?;
    println!("{name}: {:.0} MB/s one way", BULK as f64 / 1e6 / begun.elapsed().as_secs_f64());
    reading.await??;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(300), |rounds| rounds.parse())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (asking, answering) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    let (asking, (answering, _)) = (asking?, answering?);
    asking.set_nodelay(true)?;
    answering.set_nodelay(true)?;
    measure("TCP", asking, answering, rounds).await?;

    let own = Broker::start(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, BrokerConfig::default())?;
    over_broker("MQTT, the hub's own broker", &format!("mqtt://{}", own.address()), rounds).await?;
    let Some(broker) = broker::Mosquitto::start("") else { return Ok(()) };
    over_broker("MQTT, Mosquitto", &broker.url("mqtt", "omnilearn"), rounds).await
}

async fn over_broker(name: &str, url: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let url = BrokerUrl::parse(url)?;
    let topics = Topics::new(url.prefix());
    let client = |id: &str, probe_topic: String| {
        let (options, greet) = (Options::new(url.clone()), Arc::new(|_| Greeting::default()));
        Client::start(ClientConfig { options, client_id: id.to_owned(), probe_topic, greet })
    };
    let mut acceptor = Acceptor::new(client("hub", topics.hub_probe()), topics.clone());
    let dialer = Dialer::new(client("pi-4", topics.agent_probe("pi-4")), topics.clone(), "pi-4");
    let (asking, answering) = tokio::join!(dialer.dial(), acceptor.accept());
    measure(name, asking?, answering, rounds).await
}
