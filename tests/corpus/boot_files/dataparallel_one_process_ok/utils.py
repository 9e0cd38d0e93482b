import sys
import time

last_time = begin_time = time.time()


def progress_bar(current, total, msg=None):
    global last_time, begin_time
    if current == 0:
        begin_time = time.time()
    now = time.time()
    sys.stdout.write('\r %d/%d  step: %.2fs | tot: %.1fs' % (current + 1, total, now - last_time, now - begin_time))
    last_time = now
    if msg:
        sys.stdout.write(' | ' + msg)
    if current == total - 1:
        sys.stdout.write('\n')
    sys.stdout.flush()
