# "xfrm: Is the flow cache still needed?", Florian Westphal, netdev 1.2, 2016: the script used on the transmit side.
# As on the slide. For the receive side, swap ME/LOCAL/REMOTE: the test does.
ip addr add 192.168.13.1/24 dev dummy0
ip addr add dev ens4f0 192.168.11.2/24

ME=192.168.11.2
REMOTE=192.168.11.1
NETLOCAL=192.168.13.0/24
NETREMOTE=192.168.12.0/24
KEY=0x1c0cf2bb72ce67ba245b593076dfb27a

ip xfrm state add src $ME dst $REMOTE spi 1 proto esp \
mode tunnel reqid 1 auth sha1 $KEY enc 'cbc(aes)' "$KEY"

ip xfrm state add dst $ME src $REMOTE spi 1 proto esp \
mode tunnel reqid 1 auth sha1 $KEY enc 'cbc(aes)' "$KEY"

ip xfrm policy add src $NETLOCAL dst $NETREMOTE dir out \
tmpl dst $REMOTE proto esp mode tunnel reqid 1

ip xfrm policy add src $NETREMOTE dst $NETLOCAL dir in \
tmpl dst $ME proto esp mode tunnel reqid 1
