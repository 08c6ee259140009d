// The parts of Arduino, Ethernet and PubSubClient that the example uses, on a clock that a test
// advances. As in PubSubClient, one buffer holds the received and the published message.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern unsigned long clock_ms;
extern int reading;          // of all sensors
extern bool is_reachable;    // the broker
extern int n_answers, n_connects, n_loops;
enum { A0 = 0 };

inline unsigned long millis() { return clock_ms; }
inline unsigned long micros() { return 1000 * clock_ms; }
inline int analogRead(int) { return reading; }
inline long random(long) { return 4; }
inline void randomSeed(unsigned long) {}

struct SerialPort {
  void begin(long) {}
  void println(int) { n_answers++; }
};
extern SerialPort Serial;

struct EthernetClient {};

struct PubSubClient {
  explicit PubSubClient(EthernetClient &) {}
  void setServer(const char *, uint16_t) {}
  void setSocketTimeout(uint16_t seconds) { timeout_s = seconds; }
  bool setBufferSize(unsigned) { return true; }
  void setCallback(void (*new_callback)(char *, uint8_t *, unsigned)) { callback = new_callback; }
  bool connected() const { return is_connected; }
  bool subscribe(const char *, int) { return is_connected; }
  bool loop() {
    n_loops++;
    clock_ms++;
    return is_connected;
  }
  bool connect(const char *) {
    n_connects++;
    clock_ms += 1000ul * (is_reachable ? 1 : timeout_s);
    return is_connected = is_reachable;
  }
  bool publish(const char *, const uint8_t *, unsigned) { return is_connected; }

  bool is_connected = false;
  unsigned timeout_s = 15;
  void (*callback)(char *, uint8_t *, unsigned) = nullptr;
};
