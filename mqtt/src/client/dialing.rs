//! How a connection to a broker begins: TCP, TLS, CONNECT and the broker's answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v4::{Connect, ConnectReturnCode, LastWill, Packet};
use rumqttc::tokio_rustls::TlsConnector;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Message;
use super::decoder::{DecodeError, Decoded, Decoder};
use crate::options::{Options, TlsFiles};

/// How long all of it may take.
pub(super) const DIAL_LONGEST: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("no connection to {address}: {source}")]
    Tcp { address: String, source: io::Error },
    #[error("no certificates in the file for --mqtt-ca")]
    NoCa,
    #[error("the system has no certificates that it believes; give --mqtt-ca")]
    NoSystemCa,
    #[error("the own certificate or its key cannot be used: {source}")]
    Client { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("TLS cannot begin: {source}")]
    Tls { source: rustls::Error },
    #[error("`{host}` is no name that a certificate could have")]
    Name { host: String },
    #[error("no TLS with the broker: {source}")]
    Handshake { source: io::Error },
    #[error("the broker refuses: {why}")]
    Refused { why: &'static str },
    #[error("the connection was lost: {source}")]
    Lost { source: io::Error },
    #[error("the broker's first packet is no answer to a connection")]
    NoAnswer,
    #[error(transparent)]
    Decode(DecodeError),
    #[error("no answer within {} s", DIAL_LONGEST.as_secs())]
    TooSlow,
}

/// A connection in plain TCP or in TLS.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A connection that the broker has accepted.
pub(super) struct Dialed {
    pub(super) transport: Box<dyn Transport>,
    /// What came after the broker's answer.
    pub(super) bytes: BytesMut,
    pub(super) quick: QuickAcknowledgement,
}

/// Has the operating system acknowledge what comes at once.
///
/// Brokers such as Mosquitto leave Nagle's algorithm on: they hold a small packet back while one before it is not acknowledged.
/// An operating system waits up to 40 ms with that, in hope of something to send along. Together they make a stream stand still
/// for as long with each window. What is asked for lasts until the system thinks better of it, so it is asked after each read.
pub(super) struct QuickAcknowledgement {
    /// Another handle on the connection's socket.
    #[cfg(target_os = "linux")]
    socket: Option<socket2::Socket>,
}

impl QuickAcknowledgement {
    fn of(tcp: TcpStream) -> io::Result<(TcpStream, QuickAcknowledgement)> {
        #[cfg(target_os = "linux")]
        {
            let tcp = tcp.into_std()?;
            let socket = tcp.try_clone().ok().map(socket2::Socket::from); // without it, all goes on, only slower
            Ok((TcpStream::from_std(tcp)?, QuickAcknowledgement { socket }))
        }
        #[cfg(not(target_os = "linux"))]
        Ok((tcp, QuickAcknowledgement {}))
    }

    /// To be called after each read.
    pub(super) fn ask(&self) {
        #[cfg(target_os = "linux")]
        if let Some(socket) = &self.socket {
            socket.set_tcp_quickack(true).ok(); // as above
        }
    }
}

/// Connects, as `client_id`, with this last will.
pub(super) async fn dial(options: &Options, client_id: &str, will: Option<Message>) -> Result<Dialed, DialError> {
    tokio::time::timeout(DIAL_LONGEST, dial_patiently(options, client_id, will))
        .await
        .unwrap_or(Err(DialError::TooSlow))
}

async fn dial_patiently(options: &Options, client_id: &str, will: Option<Message>) -> Result<Dialed, DialError> {
    let (host, port) = (options.broker.host(), options.broker.port());
    let tcp = async {
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        QuickAcknowledgement::of(tcp)
    };
    let (tcp, quick) = tcp.await.map_err(|source| DialError::Tcp { address: format!("{host}:{port}"), source })?;
    let mut transport: Box<dyn Transport> = if options.broker.is_encrypted() {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| DialError::Name { host: host.to_owned() })?;
        let connector = TlsConnector::from(Arc::new(tls(&options.tls)?));
        Box::new(connector.connect(name, tcp).await.map_err(|source| DialError::Handshake { source })?)
    } else {
        Box::new(tcp)
    };
    let mut connect = Connect::new(client_id);
    connect.keep_alive = options.keep_alive.as_secs().clamp(1, u64::from(u16::MAX)) as u16;
    connect.last_will = will.map(|will| LastWill {
        topic: will.topic,
        message: will.payload,
        qos: QoS::AtLeastOnce,
        retain: will.retain,
    });
    if let Some(credentials) = &options.credentials {
        connect.set_login(&credentials.user, &credentials.password);
    }
    let mut bytes = BytesMut::new();
    Packet::Connect(connect)
        .write(&mut bytes, usize::MAX)
        .map_err(|error| DialError::Decode(DecodeError::Packet(error)))?;
    let lost = |source| DialError::Lost { source };
    transport.write_all_buf(&mut bytes).await.map_err(lost)?;
    transport.flush().await.map_err(lost)?;
    let mut decoder = Decoder::default();
    loop {
        match decoder.next(&mut bytes, |_| 0).map_err(DialError::Decode)? {
            Some(Decoded::Packet(Packet::ConnAck(answer))) => {
                return match refusal(answer.code) {
                    None => Ok(Dialed { transport, bytes, quick }),
                    Some(why) => Err(DialError::Refused { why }),
                };
            }
            Some(_) => return Err(DialError::NoAnswer),
            None => {}
        }
        bytes.reserve(4096);
        if transport.read_buf(&mut bytes).await.map_err(lost)? == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

fn refusal(code: ConnectReturnCode) -> Option<&'static str> {
    match code {
        ConnectReturnCode::Success => None,
        ConnectReturnCode::RefusedProtocolVersion => Some("it does not speak MQTT 3.1.1"),
        ConnectReturnCode::BadClientId => Some("it does not take this client id"),
        ConnectReturnCode::ServiceUnavailable => Some("it is not available"),
        ConnectReturnCode::BadUserNamePassword => Some("user or password are wrong"),
        ConnectReturnCode::NotAuthorized => Some("not authorized; it may want --mqtt-user and a password"),
    }
}

fn tls(files: &TlsFiles) -> Result<ClientConfig, DialError> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem).flatten() {
                roots.add(certificate).map_err(|source| DialError::Tls { source })?;
            }
            if roots.is_empty() {
                return Err(DialError::NoCa);
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(DialError::NoSystemCa);
            }
        }
    }
    // The provider is named, since a process in which two crates bring one each has no default.
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|source| DialError::Tls { source })?
        .with_root_certificates(roots);
    let Some((certificates, key)) = &files.client else { return Ok(builder.with_no_client_auth()) };
    let unusable = |source: Box<dyn std::error::Error + Send + Sync>| DialError::Client { source };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificates)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(error.into()))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unusable(error.into()))?;
    builder.with_client_auth_cert(certificates, key).map_err(|error| unusable(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_certificates_are_told() {
        let ca = |pem: &[u8]| TlsFiles { ca: Some(pem.to_vec()), client: None };
        assert!(matches!(tls(&ca(b"")), Err(DialError::NoCa)));
        assert!(matches!(tls(&ca(b"\xff\x00 no PEM")), Err(DialError::NoCa)));
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["x".into()]).unwrap().self_signed(&key).unwrap().pem().into_bytes();
        assert!(tls(&ca(&certificate)).is_ok());
        let client = |certificate: &[u8], key: &[u8]| TlsFiles {
            ca: Some(certificate.to_vec()),
            client: Some((certificate.to_vec(), key.to_vec())),
        };
        assert!(tls(&client(&certificate, key.serialize_pem().as_bytes())).is_ok());
        assert!(matches!(tls(&client(&certificate, b"no key")), Err(DialError::Client { .. })));
    }
}
