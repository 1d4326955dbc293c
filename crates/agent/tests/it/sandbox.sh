# Builds a root of its own in this mount namespace, as the container of a sandbox has it, and becomes the agent in it.
# $1 folder of the test, $2 agent binary, $3 control group of the test or nothing.
set -e
root=$1/root
mount -t tmpfs -o mode=755 tmpfs "$root"
for name in bin sbin lib lib32 lib64; do
    if [ -L /$name ]; then cp -P /$name "$root/"; elif [ -d /$name ]; then mkdir "$root/$name"; mount --rbind /$name "$root/$name"; fi
done
mkdir -p "$root"/usr "$root"/etc "$root"/proc "$root"/dev/shm "$root"/dev/pts "$root"/tmp "$root"/workspace "$root"/run "$root"/.toolhost/link "$root"/sys/fs/cgroup/memory
mount --rbind /usr "$root/usr"
mount --bind -o ro /etc "$root/etc"
mount -t proc proc "$root/proc"
for name in null zero full random urandom tty; do touch "$root/dev/$name"; mount --bind /dev/$name "$root/dev/$name"; done
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5,nosuid,noexec devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mount -t tmpfs -o mode=1777,nosuid,nodev,size=64m tmpfs "$root/tmp"
mount -t tmpfs -o mode=1777,nosuid,nodev,size=16m tmpfs "$root/dev/shm"
mount --bind "$1/workspace" "$root/workspace"
mount --bind "$1/link" "$root/.toolhost/link"
cp "$2" "$root/.toolhost/agent"
chmod 700 "$root/.toolhost"
if [ -n "$3" ]; then mount --bind "$3" "$root/sys/fs/cgroup/memory"; fi
if [ -n "$4" ]; then rm -f "$root/bash.hidden"; touch "$1/empty"; mount --bind "$1/empty" "$root/usr/bin/bash"; fi
mount -o remount,ro "$root"
# The pid namespace's first process: what `exec` leaves is the agent, with the capabilities that a sandbox gives it.
exec env -i /usr/sbin/chroot "$root" /usr/bin/setpriv --bounding-set=-all,+setuid,+setgid,+kill,+chown --inh-caps=-all --no-new-privs /.toolhost/agent
